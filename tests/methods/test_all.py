"""What every method must do: learn, take any rule, run with any model. Its bits are locked in tests/locks."""

import importlib.util
import inspect
import math
import re
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import torch
from torch import nn

from comity import ComityError, Config
from comity._options import Range, options
from comity.engine import run
from comity.methods import METHODS, Message
from helpers import build, client_of, keeps, unmoving_rule, used

DIGITS: dict[str, Any] = {
    "partition": {"name": "dirichlet", "alpha": 0.1},
    "model": {"name": "mlp", "widths": (64,)},
    "rounds": 10,
    "lr": 0.1,
    "eval_every": 10,
    "reference": "none",
    "workers": 1,
}
MIXERS = {"FedAMP", "FedFomo", "FedU", "FedProto", "pFedHN", "FEDORA"}
"""Methods without an average: their own mixture stands in its place, and a rule is refused."""
OWN_RULE = {name for name, method in METHODS.items() if method().own_rule() is not None} - MIXERS


@pytest.mark.parametrize("method", METHODS)
def test_it_learns_digits(method: str) -> None:
    """Ten rounds at Dirichlet 0.1, where chance is a tenth."""
    last = run(**DIGITS, method=method).result.last
    assert last.metrics["L-acc"].mean > 0.3


@pytest.mark.parametrize("rule", ["ConFREE", "CALM"])
@pytest.mark.parametrize("method", METHODS)
def test_any_rule_takes_the_place_of_its_average(tiny: dict[str, Any], method: str, rule: str) -> None:
    options = tiny | {"rounds": 2, "data": tiny["data"] | {"label_shift": 0.9}}
    if method in MIXERS | OWN_RULE:
        with pytest.raises(ComityError, match="brings its own rule"):
            run(**options, method=method, rule=rule)
        return
    ruled, plain = run(**options, method=method, rule=rule), run(**options, method=method)
    if method == "Local":
        assert ruled.columns == plain.columns
        return
    certified = [record.rule.residual for record in ruled.records]
    assert max(certified) <= 1e-8
    assert ruled.result.last != plain.result.last


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_is_not_sampled_keeps_its_state(tiny: dict[str, Any], method: str) -> None:
    options = tiny | {"clients": 6, "participation": 0.5}
    first, second = run(**options | {"rounds": 1}, method=method), run(**options | {"rounds": 2}, method=method)
    before, after = keeps(first), keeps(second)
    absent = before.keys() - second.records[1].cohort
    assert absent
    for cid in absent:
        assert before[cid].keys() == after[cid].keys()
        assert all(torch.equal(before[cid][name], after[cid][name]) for name in before[cid])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_it_runs_with_batchnorm_absent_and_dropped_out_clients(tiny: dict[str, Any], method: str, buffers: str) -> None:
    options = tiny | {"model": "resnet4", "rounds": 2, "clients": 4, "lr": 0.01, "buffers": buffers}
    done = run(**options, method=method, participation=0.5, dropout=0.3)
    assert not any(record.failed for record in done.records)
    assert len(done.columns["L-acc"]) == 4
    assert all(torch.isfinite(model).all() for model in used(done))
    assert torch.isfinite(done.server.theta).all()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_it_runs_with_a_transformer(tiny: dict[str, Any], method: str) -> None:
    model = {"name": "vit-tiny", "depth": 1}
    done = run(**(tiny | {"model": model, "rounds": 2, "clients": 3, "lr": 0.01}), method=method, participation=0.7)
    assert torch.isfinite(torch.tensor(done.columns["loss"])).all()


FORMS: list[dict[str, Any]] = [
    {"name": "APFL", "form": "pfllib"},
    {"name": "APFL", "form": "pfllib", "alpha": 1.0},
    {"name": "FedAMP", "form": "cosine"},
    {"name": "FedPAC", "lam": 0.0},
    {"name": "FedROD", "head": "hypernetwork"},
    {"name": "FedU", "graph": "random"},
    {"name": "Per-FedAvg", "hessian": "hessian-free"},
]
"""Other forms of some methods, which must differ too."""


def test_no_two_methods_give_the_same_models(tiny: dict[str, Any]) -> None:
    """No method is secretly another, Local least of all."""
    options = tiny | {"rounds": 2, "data": tiny["data"] | {"label_shift": 0.9}, "val_share": 0.2}
    losses: dict[tuple[float, ...], Any] = {}
    # FedBN is FedAvg in a network without BatchNorm; see test_foundation.py
    for method in [*sorted(METHODS.keys() - {"FedBN"}), *FORMS]:
        key = tuple(run(**options, method=method).columns["loss"])
        assert key not in losses, f"{method} is {losses.get(key)}"
        losses[key] = method


def outside(to: Any) -> list[float]:
    """Numbers just outside the range of an option's type; the ranges themselves are in docs/reference/methods.md."""
    kinds = [kind for kind in (to, *get_args(to)) if get_origin(kind) is Annotated]
    ranges = [item for kind in kinds for item in get_args(kind) if isinstance(item, Range)]
    found = [((each.least, -1), (each.most, 1), (each.above, 0), (each.below, 0)) for each in ranges]
    return [bound + step for bounds in found for bound, step in bounds if math.isfinite(bound)]


@pytest.mark.parametrize("method", METHODS)
def test_an_option_out_of_range_is_rejected(method: str) -> None:
    for option in options(METHODS[method]).values():
        for value in outside(option.type):
            with pytest.raises(ComityError, match=rf"method\.{option.name} must be .*, got {value}(\.0)?$"):
                METHODS[method](**{option.name: value})


def test_ranges_are_known() -> None:
    assert outside(options(METHODS["APFL"])["alpha"].type) == [-1, 2]
    assert outside(options(METHODS["FedAMP"])["sigma"].type) == [0]


@pytest.mark.parametrize(
    ("method", "ruled"),
    [("FedCP", ("body",)), ("GPFL", ("body",)), ({"name": "FedROD", "head": "hypernetwork"}, ("body", "head"))],
    ids=["FedCP", "GPFL", "FedROD"],
)
def test_the_rule_acts_on_some_parts_and_the_others_are_averaged(
    tiny: dict[str, Any], method: Any, ruled: tuple[str, ...]
) -> None:
    site, server = build(Config(**(tiny | {"model": "resnet4", "lr": 0.05}), method=method))
    server.rule, seen = unmoving_rule()
    before, size = server.theta.clone(), site.model().size(*ruled)
    server.step()
    assert seen == [tuple(name for name in server.layout.names if name.startswith(ruled))]
    assert torch.equal(server.theta[:size], before[:size])
    rows = [site.method.fit(client_of(site, cid), Message(theta=before)).theta for cid in range(5)]
    sizes = torch.tensor([float(len(client.train)) for client in site.federation.clients])
    mean = sizes / sizes.sum() @ torch.stack(rows)
    torch.testing.assert_close(server.theta[size:], mean[size:], rtol=1e-5, atol=1e-6)  # buffers too
    assert (mean[size:] - before[size:]).abs().max() > 1e-3


@pytest.mark.parametrize("method", ["FedCP", "GPFL"])
def test_a_head_that_is_not_linear_is_rejected(method: str) -> None:
    net = nn.Module()
    net.body, net.head = nn.Flatten(), nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(ComityError, match=f"{method} needs a model whose head is one linear layer, got Sequential"):
        METHODS[method]().build(net)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if "personal_model" in options(method)])
def test_what_local_training_made_last_is_the_model_as_fitted(tiny: dict[str, Any], method: str) -> None:
    brief = tiny | {"rounds": 2}
    received = run(**brief, method=method, eval_point="received").columns["loss"]
    fitted = run(**brief, method=method, eval_point="fitted").columns["loss"]
    chosen = run(**brief, method={"name": method, "personal_model": "post_local"}).columns["loss"]
    assert chosen == fitted != received


SECTIONS = ["Use", "Paper", "Equation", "Departures", "Options"]


@pytest.mark.parametrize("method", METHODS)
def test_its_docstring_has_the_common_shape(method: str) -> None:
    doc = inspect.getdoc(METHODS[method]) or ""
    first, _, rest = doc.partition("\n\n")
    assert first.endswith(".")
    assert "\n" not in first
    sections = re.findall(r"^(\w+):", rest, flags=re.MULTILINE)
    assert sections == [name for name in SECTIONS if name in sections]
    assert {"Use", "Equation"} <= set(sections)
    assert ("Paper" in sections) == (method != "Local")
    assert [option.name for option in options(METHODS[method]).values() if not option.help] == []


def test_the_page_of_methods_is_what_the_classes_say() -> None:
    docs = Path(__file__).parents[2] / "docs"
    spec = importlib.util.spec_from_file_location("make_methods", docs / "make_methods.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    for said, page in ((maker.section, "methods"), (maker.details, "method-details")):
        text = (docs / "reference" / f"{page}.md").read_text()
        assert [name for name, method in METHODS.items() if said(name, method) not in text] == [], "make docs"
