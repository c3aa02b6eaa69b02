"""What every method must do: learn, take any rule, run with any model. Its bits are locked in tests/locks."""

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from comity import ComityError
from comity._options import options
from comity.engine import run
from comity.methods import METHODS

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


@pytest.mark.slow
@pytest.mark.parametrize("model", [{"name": "resnet4"}, {"name": "vit-tiny", "depth": 1}], ids=["resnet4", "vit-tiny"])
@pytest.mark.parametrize("method", METHODS)
def test_it_runs_with_batchnorm_and_with_a_transformer(
    tiny: dict[str, Any], method: str, model: dict[str, Any]
) -> None:
    done = run(**(tiny | {"model": model, "rounds": 2, "clients": 3, "lr": 0.01}), method=method, participation=0.7)
    assert torch.isfinite(torch.tensor(done.columns["loss"])).all()


def test_no_two_methods_give_the_same_models(tiny: dict[str, Any]) -> None:
    """Nobody is secretly another, Local least of all."""
    options = tiny | {"rounds": 2, "data": tiny["data"] | {"label_shift": 0.9}, "val_share": 0.2}
    losses: dict[tuple[float, ...], str] = {}
    for method in METHODS.keys() - {"FedBN"}:  # which is FedAvg in a network without BatchNorm; see test_fedbn.py
        # FEDORA's default follows nobody until that helps on validation data, which two rounds do not bring about
        entry = {"name": method} | ({"lam_form": "exp"} if method == "FEDORA" else {})
        key = tuple(run(**options, method=entry).columns["loss"])
        assert key not in losses, f"{method} is {losses.get(key)}"
        losses[key] = method


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if "personal_model" in options(method)])
def test_what_local_training_made_last_is_the_model_as_fitted(tiny: dict[str, Any], method: str) -> None:
    brief = tiny | {"rounds": 2}
    received = run(**brief, method=method, moment="received").columns["loss"]
    fitted = run(**brief, method=method, moment="fitted").columns["loss"]
    chosen = run(**brief, method={"name": method, "personal_model": "post_local"}).columns["loss"]
    assert chosen == fitted != received


SECTIONS = ["Paper", "Equation", "Departures", "Options"]


@pytest.mark.parametrize("method", METHODS)
def test_its_docstring_has_the_common_shape(method: str) -> None:
    doc = inspect.getdoc(METHODS[method]) or ""
    first, _, rest = doc.partition("\n\n")
    assert first.endswith(".")
    assert "\n" not in first
    sections = re.findall(r"^(\w+):", rest, flags=re.MULTILINE)
    assert sections == [name for name in SECTIONS if name in sections]
    assert "Equation" in sections
    assert ("Paper" in sections) == (method != "Local")
    assert [option.name for option in options(METHODS[method]).values() if not option.help] == []


def test_the_page_of_methods_is_what_the_classes_say() -> None:
    docs = Path(__file__).parents[2] / "docs"
    spec = importlib.util.spec_from_file_location("make_methods", docs / "make_methods.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    page = (docs / "methods.md").read_text()
    for said in (maker.section, maker.compared):
        assert [name for name, method in METHODS.items() if said(name, method) not in page] == [], "make docs"
