"""Folders of models that are damaged, or made by somebody who also writes a digest that fits."""

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from comity import ComityError, load_model
from comity._components import Component
from comity.data import Column, Preprocessing, Scaler, Schema
from comity.deploy import ClientModel, Provenance, Weighted, make_artefact, write_model
from comity.nn import MODELS
from fuzz.harness import attempt, damaged, fuzz

SCHEMA = Schema(
    target="ill", classes=("no", "yes"), columns={"age": Column("number"), "sex": Column("category", ("f", "m"))}
)


def made() -> tuple[bytes, bytes]:
    """The two files of a model."""
    model, method = Component.parse("model", "logistic"), Component.parse("method", "FedAvg")
    net = MODELS["logistic"]((3,), 2)
    artefact = make_artefact(
        model=model,
        experts=[Weighted("federated", 1.0, method, net.state_dict(), (0.4, 0.6))],
        preprocessing=Preprocessing((3,), Scaler(np.zeros(3), np.ones(3)), schema=SCHEMA),
        class_names=SCHEMA.classes,
        metric="balanced",
        provenance=Provenance(client="a"),
    )
    with tempfile.TemporaryDirectory() as place:
        write_model(Path(place), artefact)
        return (Path(place) / "model.json").read_bytes(), (Path(place) / "model.safetensors").read_bytes()


INFO, TENSORS = made()


def check(info: bytes, tensors: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "model.json").write_bytes(info)
        (Path(place) / "model.safetensors").write_bytes(tensors)
        model = attempt(lambda: load_model(place))
    if isinstance(model, ClientModel):
        rows = {"age": [50, None], "sex": ["f", "m"]}
        predicted = attempt(lambda: model.predict_proba(rows))
        assert isinstance(predicted, ComityError) or np.allclose(predicted.sum(1), 1)
        assert "<script" not in model.card + model._repr_html_()
        assert repr(model).isprintable()


def test_the_model_itself_is_fine() -> None:
    check(INFO, TENSORS)


@fuzz("models", damaged(INFO))
def test_damaged_model_json(content: bytes) -> None:
    check(content, TENSORS)


@fuzz("models", damaged(TENSORS))
def test_damaged_tensors(content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    check(json.dumps(json.loads(INFO) | {"digest": digest}).encode(), content)


NASTY = st.none() | st.integers() | st.floats() | st.text(max_size=20) | st.just("<script>x</script>")
NASTY |= st.lists(st.integers(-1, 10**9), max_size=4) | st.dictionaries(st.text(max_size=5), st.integers(), max_size=2)


@st.composite
def edited(draw: st.DrawFn) -> bytes:
    """``model.json`` with one value replaced by something else of JSON."""
    info = json.loads(INFO)
    at = info
    while True:
        key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[key], (dict, list)) or not at[key] or draw(st.booleans()):
            at[key] = draw(NASTY)
            return json.dumps(info).encode()
        at = at[key]


@fuzz("models", edited())
def test_edited_model_json(content: bytes) -> None:
    check(content, TENSORS)
