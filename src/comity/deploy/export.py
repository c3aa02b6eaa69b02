"""Export a model as one file for other programs, including preprocessing, mixture and decision.

The exported model takes raw features (categories as 0/1 features, in the order of the schema; NaN if missing), series,
or images (n, H, W, C), and returns probabilities and the index of the predicted class.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from comity._errors import ComityError, install, one_line
from comity._write import atomically
from comity.deploy.artefact import TOLERANCE
from comity.deploy.estimator import ClientModel

Answer = Callable[[NDArray[Any]], NDArray[Any]]
"""Probabilities for raw samples."""
INPUT, OUTPUTS = "samples", ("probabilities", "class")


class Deployed(nn.Module):
    """A module from raw samples to probabilities and class indices."""

    centre: Tensor
    factor: Tensor
    shares: Tensor

    def __init__(self, model: ClientModel) -> None:
        super().__init__()
        info, prepare = model.artefact.info, model.artefact.preprocessing
        used = [(weight, net) for weight, net in zip(model.weights, model.artefact.nets, strict=True) if weight > 0]
        self.nets, self.weights = nn.ModuleList(net for _, net in used), [float(weight) for weight, _ in used]
        self.scaled, self.pixels, self.centred = info.inputs.scaled, info.inputs.pixels, info.inputs.centred
        self.images, self.balanced = len(info.inputs.shape) == 3, model.expected_shares is not None
        if prepare.scaler is not None:
            shape = (-1, *[1] * (len(info.inputs.shape) - 1))
            for name in ("centre", "factor"):
                self.register_buffer(name, torch.from_numpy(getattr(prepare.scaler, name)).reshape(shape))
        if (shares := model.expected_shares) is not None:
            self.register_buffer("shares", torch.from_numpy(shares).float())

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        x = samples.permute(0, 3, 1, 2) if self.images else samples
        if self.scaled:
            x = (x.double() - self.centre) * self.factor
            x = torch.where(torch.isnan(x), torch.zeros_like(x), x).float()
        elif self.pixels:
            x = x.float() / 255
            x = (x - 0.5) / 0.5 if self.centred else x
        weighted = [weight * torch.softmax(net(x), 1) for weight, net in zip(self.weights, self.nets, strict=True)]
        p = torch.stack(weighted).sum(0)
        p = p / p.sum(1, keepdim=True)
        ratio = torch.where(self.shares > 0, p / self.shares, torch.full_like(p, -1)) if self.balanced else p
        return p, ratio.argmax(1)


def export_onnx(model: ClientModel, file: Path) -> float:
    """Write an ONNX file; returns the largest difference of its probabilities from the model's on stored samples."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # torch.onnx needs it
    except ImportError as error:
        raise ComityError(f"ONNX needs onnx, onnxscript and onnxruntime: {install('onnx')}") from error
    with _without_messages(), atomically(file) as part:
        module, checks, shapes = _traced(model)
        made = torch.onnx.export(
            module,
            (checks,),
            dynamo=True,
            verbose=False,
            dynamic_shapes=shapes,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
        )
        assert made is not None
        made.model.metadata_props.update(_about(model))
        made.save(part, external_data=False)

        def answer(samples: NDArray[Any]) -> NDArray[Any]:
            session = onnxruntime.InferenceSession(part.read_bytes(), providers=["CPUExecutionProvider"])
            return np.asarray(session.run([OUTPUTS[0]], {INPUT: samples})[0])

        return _difference(model, answer)


def export_torch(model: ClientModel, file: Path) -> float:
    """Write a file for ``torch.export.load``; returns the largest difference as in ``export_onnx``."""
    with _without_messages(), atomically(file) as part:
        module, checks, shapes = _traced(model)
        made = torch.export.export(module, (checks,), dynamic_shapes=shapes)
        with part.open("wb") as stream:
            torch.export.save(made, stream, extra_files=_about(model))
        with part.open("rb") as stream:
            loaded = torch.export.load(stream).module()
        return _difference(model, lambda samples: loaded(torch.from_numpy(samples))[0].numpy())


def _traced(model: ClientModel) -> tuple[Deployed, Tensor, dict[str, Any]]:
    """The module, samples to trace it with, and their dynamic dimensions."""
    shapes = {INPUT: {0: torch.export.Dim("rows")}}
    return Deployed(model).eval(), model.artefact.tensors["check.x"], shapes


def _difference(model: ClientModel, answer: Answer) -> float:
    """Largest difference, also for single samples: a file must accept any number of rows."""
    checks = model.artefact.tensors["check.x"].numpy()
    wanted = model.predict_proba(checks)
    found = [answer(checks), np.concatenate([answer(checks[row : row + 1]) for row in range(2)])]
    off = max(float(np.abs(each - wanted[: len(each)]).max()) for each in found)
    if not off <= TOLERANCE:
        raise ComityError(f"the exported model differs from the original by {off:.2g}; nothing is written")
    return off


def _about(model: ClientModel) -> dict[str, str]:
    """Metadata that a program needs beside the numbers."""
    info = model.artefact.info
    schema = info.inputs.schema
    features = [] if schema is None else schema.features
    about = {"classes": info.classes, "features": features, "client": info.provenance.client, "digest": info.digest}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}


@contextmanager
def _without_messages() -> Iterator[None]:
    """Suppress the exporters' messages, and turn their errors into one line."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except (ComityError, OSError):
        raise
    except Exception as error:  # an exporter may raise anything
        raise ComityError(f"the model cannot be exported: {one_line(error, 300)}") from error
    finally:
        logging.disable(level)
