"""Exported models beside the original, on the same rows."""

from pathlib import Path

import numpy as np
import pytest
import torch

from comity import ComityError, load_model, run
from comity.__main__ import main
from comity.commands import command
from comity.deploy import ClientModel, export
from helpers import Options


def outside(file: Path, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and classes by the program that the file is for."""
    if file.suffix == ".onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        probabilities, classes = onnxruntime.InferenceSession(file).run(None, {"samples": x})
        return probabilities, classes
    probabilities, classes = torch.export.load(file).module()(torch.from_numpy(x))
    return probabilities.detach().numpy(), classes.numpy()


@pytest.mark.parametrize("suffix", [pytest.param("onnx", marks=pytest.mark.slow), "pt2"])
def test_it_predicts_what_the_original_predicts(
    heart: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"a.{suffix}"
    assert main(["export", str(heart), "--onnx" if suffix == "onnx" else "--torch", str(file)]) == 0
    assert "largest difference from the original on the stored samples" in capsys.readouterr().out
    model = load_model(heart)
    random = np.random.default_rng(0)
    centre, spread = (
        model.artefact.tensors["scaler.centre"].numpy(),
        1 / model.artefact.tensors["scaler.factor"].numpy(),
    )
    x = (centre + 2 * random.normal(size=(200, 25)) * spread).astype(np.float32)
    x[random.random(x.shape) < 0.1] = np.nan
    probabilities, classes = outside(file, x)
    assert np.abs(probabilities - model.predict_proba(x)).max() < 1e-6
    assert (model.classes_[classes] == model.predict(x)).all()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
@pytest.mark.parametrize(
    "options",
    [
        {"data": "digits", "model": "cnn", "method": "FedROD"},
        {"data": "digits", "model": "resnet4", "method": "SplitGP"},
        {"data": {"name": "synthetic", "size": 8}, "model": "mlp", "method": "GPFL"},
    ],
    ids=str,
)
def test_networks_and_methods(options: Options, suffix: str, tmp_path: Path) -> None:
    run(**options, clients=2, rounds=1, batch_size=64, reference="none", out=tmp_path / "x")
    model, file = load_model(tmp_path / "x" / "models" / "000"), tmp_path / f"a.{suffix}"
    (export.export_onnx if suffix == "onnx" else export.export_torch)(model, file)
    x = model.artefact.tensors["check.x"].numpy()[:3]
    assert np.abs(outside(file, x)[0] - model.predict_proba(x)).max() < 1e-5


def test_what_cannot_be_traced_is_one_line(tiny: Options, tmp_path: Path) -> None:
    """FedProto's network looks at its prototypes before it answers."""
    run(**tiny, method={"name": "FedProto", "answer": "prototype"}, out=tmp_path / "x")
    model = load_model(tmp_path / "x" / "models" / "000")
    with pytest.raises(ComityError, match=r"^the model cannot be exported: "):
        export.export_torch(model, tmp_path / "a.pt2")
    assert not (tmp_path / "a.pt2").exists()


def test_a_file_that_differs_is_not_written(heart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(heart)
    right = ClientModel.predict_proba
    monkeypatch.setattr(ClientModel, "predict_proba", lambda self, rows: right(self, rows) + 0.001)
    with pytest.raises(ComityError, match=r"differs from the original by 0\.001; nothing is written"):
        export.export_torch(model, tmp_path / "a.pt2")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ComityError, match="needs --onnx FILE or --torch FILE"):
        command("export", [str(heart)])
