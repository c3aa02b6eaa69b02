"""Rules in NVFlare: `make test-nvflare` runs these in an environment of their own."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

pytest.importorskip("nvflare.apis", reason="nvflare is not installed: make test-nvflare")
pytestmark = pytest.mark.filterwarnings("default")  # the library warns of its own matters

from nvflare.apis.fl_context import FLContextManager  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType  # noqa: E402
from nvflare.app_common.abstract.model import make_model_learnable  # noqa: E402
from nvflare.app_common.app_constant import AppConstants  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402

from comity import ComityError  # noqa: E402
from comity.nvflare import RuleAggregator  # noqa: E402
from comity.rules import ConFREE, FedFV, Mean, Rule  # noqa: E402

EXAMPLE = Path(__file__).parents[1] / "examples" / "nvflare"
SIZES = {"site-1": 10, "site-2": 30, "site-3": 60}
NAMES = ("weight", "bias")


def state(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(3, 4, generator=generator),
        "bias": torch.randn(3, generator=generator),
        "bn.running_mean": torch.randn(3, generator=generator),
        "bn.num_batches_tracked": torch.tensor(seed),
    }


OURS = state(9)
THEIRS = {name: state(k) for k, name in enumerate(SIZES)}


def aggregator(rule: Any = "Mean", known: bool = True) -> tuple[RuleAggregator, list[str]]:
    """One as a controller has it, and what it warns of."""
    made, told = RuleAggregator(rule), []
    made.warning = made.error = told.append
    if known:
        made.fl_ctx = FLContextManager().new_context()
        made.fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(dict(OURS), {}), private=True, sticky=True)
    return made, told


def sent(name: str, params: dict[str, Any], **more: Any) -> FLModel:
    return FLModel(params=params, meta={"client_name": name, "NUM_STEPS_CURRENT_ROUND": SIZES.get(name)}, **more)


def difference(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value - OURS[name] for name, value in theirs.items()}


def renewed(update: FLModel) -> dict[str, Any]:
    return FLModelUtils.update_model(FLModel(params=dict(OURS)), update).params


def by_hand(rule: Rule, names: tuple[str, ...] = tuple(SIZES), **more: Any) -> dict[str, Tensor]:
    sizes = torch.tensor([SIZES[name] for name in names], dtype=torch.float64)
    step = rule([{k: difference(THEIRS[name])[k] for k in NAMES} for name in names], sizes=sizes, **more)
    shares = (sizes / sizes.sum()).tolist()
    mean = sum(x * THEIRS[name]["bn.running_mean"] for x, name in zip(shares, names, strict=True))
    return OURS | {name: OURS[name] + step[name] for name in NAMES} | {"bn.running_mean": mean}


@pytest.mark.parametrize("rule", [Mean(), ConFREE(0.4)], ids=["Mean", "ConFREE"])
@pytest.mark.parametrize("differences", [False, True], ids=["models", "differences"])
@pytest.mark.parametrize("arrays", [False, True], ids=["torch", "numpy"])
def test_it_is_the_rule(rule: Rule, differences: bool, arrays: bool) -> None:
    made, told = aggregator({"name": "ConFREE", "c": 0.4} if isinstance(rule, ConFREE) else "Mean", not differences)
    for name in reversed(SIZES):
        params: dict[str, Any] = difference(THEIRS[name]) if differences else THEIRS[name]
        params = {key: value.numpy() for key, value in params.items()} if arrays else params
        made.accept_model(sent(name, params, params_type=ParamsType.DIFF if differences else ParamsType.FULL))
    found = made.aggregate_model()
    assert all(isinstance(value, np.ndarray if arrays else Tensor) for value in found.params.values())
    for name, value in by_hand(rule).items():
        torch.testing.assert_close(torch.as_tensor(renewed(found)[name]), value)
    assert told == []


def test_the_order_of_arrival_does_not_count() -> None:
    def combined(names: list[str]) -> dict[str, Tensor]:
        made, _ = aggregator("ConFREE")
        for name in names:
            made.accept_model(sent(name, THEIRS[name]))
        return made.aggregate_model().params

    one, other = combined(list(SIZES)), combined(list(reversed(SIZES)))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"weight": torch.full((3, 4), torch.nan)}, "'weight' is not finite"),
        ({"bn.running_mean": torch.full((3,), torch.inf)}, "'bn.running_mean' is not finite"),
        ({"weight": torch.zeros(4, 3)}, r"'weight' has shape (4, 3), not (3, 4)"),
        ({"weight": None}, "'weight' is of type NoneType, not an array"),
        ({"more": torch.zeros(2)}, "'more' is not in the global model"),
        ({"weight": np.array(["a"])}, "'weight' cannot be read"),
    ],
)
def test_what_cannot_be_used_is_left_out_and_named(change: dict[str, Any], why: str) -> None:
    made, told = aggregator()
    made.accept_model(sent("site-2", THEIRS["site-2"] | change))
    for name in ("site-1", "site-3"):
        made.accept_model(sent(name, THEIRS[name]))
    made.accept_model(sent("site-1", THEIRS["site-2"]))
    found = renewed(made.aggregate_model())
    for name, value in by_hand(Mean(), ("site-1", "site-3")).items():
        torch.testing.assert_close(found[name], value)
    assert told[0].startswith(f"left out site-2: {why}")
    assert told[1:] == ["left out site-1: it has sent something already"]


def test_with_nobody_left_the_model_stays() -> None:
    made, told = aggregator()
    made.accept_model(sent("site-1", {"weight": torch.zeros(1)}))
    assert made.aggregate_model().params == {}
    assert told[1:] == ["no client's model can be used; the global model stays as it is"]
    made.reset_stats()
    made.accept_model(sent("site-1", THEIRS["site-1"]))
    assert made.aggregate_model().params


def test_whole_models_need_one_to_compare_with() -> None:
    made, told = aggregator(known=False)
    made.accept_model(sent("site-1", THEIRS["site-1"]))
    assert "have clients send differences (DIFF)" in told[0]


def test_losses_for_the_rules_that_need_them() -> None:
    made, told = aggregator("FedFV")
    for loss, name in enumerate(SIZES, 1):
        made.accept_model(sent(name, THEIRS[name], metrics={"loss": loss} if loss < 3 else {}))
    found = renewed(made.aggregate_model())
    for name, value in by_hand(FedFV(), ("site-1", "site-2"), losses=[1.0, 2.0]).items():
        torch.testing.assert_close(found[name], value)
    assert len(told) == 1
    assert "site-3" in told[0]
    assert "its loss is nan" in told[0]


def test_a_rule_that_is_none_is_refused() -> None:
    with pytest.raises(ComityError, match="did you mean ConFREE"):
        RuleAggregator("confre")


def test_in_the_simulator_with_a_site_that_sends_nonsense(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "job"))
    script = (folder / "client.py").read_text()
    broken = script.replace(
        "        flare.send(",
        "        if own.id == 2:\n            model[0].weight.data[0, 0] = float('nan')\n        flare.send(",
    )
    assert broken != script
    (folder / "client.py").write_text(broken)
    command = [sys.executable, "job.py", "--rounds", "2", "--rule", "ConFREE", "--workspace", str(tmp_path / "sim")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    log = done.stdout + done.stderr
    assert done.returncode == 0, log[-2000:]
    assert log.count("left out site-3: '0.weight' is not finite") == 2
    assert log.count("ConFREE() combined site-1, site-2, site-4") == 2

    from comity import Config
    from comity.engine import RunPlan

    sys.path.insert(0, str(folder))
    from model import Net

    clients = RunPlan(Config(data="heart")).everyone.clients
    ours = Net().state_dict()
    for _ in range(2):
        updates = []
        for own in (clients[0], clients[1], clients[3]):
            net = Net()
            net.load_state_dict(ours)
            steps = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(5):
                steps.zero_grad()
                cross_entropy(net(own.train.x), own.train.y).backward()
                steps.step()
            updates.append({name: value.detach() - ours[name] for name, value in net.state_dict().items()})
        step = ConFREE()(updates)
        ours = {name: value + step[name] for name, value in ours.items()}
    saved = torch.load(next((tmp_path / "sim").rglob("FL_global_model.pt")), weights_only=False)
    for name, value in ours.items():
        torch.testing.assert_close(saved["model"][name], value, rtol=1e-5, atol=1e-6)
