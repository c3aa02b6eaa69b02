"""A client's model as a folder: everything for prediction, and its description. It contains no rows of data.

``model.json`` describes the model, ``model.safetensors`` has its numbers, and ``card.md`` is for people. A folder may
be untrusted: its content is checked, and only comity's own code is run.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor, nn

from comity import __version__
from comity._components import Component
from comity._errors import ComityError, one_line
from comity._memory import installed, show_bytes
from comity._random import numpy_generator
from comity._write import atomically, write_text
from comity.config import code_in, reject_code
from comity.data import Preprocessing, Scaler, in_training_layout
from comity.deploy.card import markdown
from comity.deploy.records import FORMAT, ExpertInfo, Inputs, ModelInfo, Performance, Provenance, Version
from comity.engine import write_tensors
from comity.nn import Model, with_head
from comity.results import from_json, schema, to_json

INFO, TENSORS, CARD = "model.json", schema.TENSORS, "card.md"
MOST_INFO = 16 * 10**6
"""Maximum bytes of ``model.json``."""
CHECKS = 8
"""Number of synthetic samples that are stored with their predictions."""
TOLERANCE = 1e-4
"""Maximum difference between probabilities of a loaded or exported model and the stored ones."""
ROWS = 1024
"""Samples per forward pass."""


@dataclass(frozen=True, eq=False)
class Weighted:
    """One of the models that a client mixes: its tensors under the network's names, and its weight in the mixture.

    ``method`` is the method whose parts the network has; ``shares`` are the class shares that the model expects (its
    mean prediction on the client's samples except tests), for balanced accuracy.
    """

    name: Literal["own", "federated", "common"]
    weight: float
    method: Component
    tensors: Mapping[str, Tensor]
    shares: Sequence[float] | None = None
    trained_on: Literal["", "all", "train"] = ""

    @classmethod
    def of(
        cls,
        name: Literal["own", "federated", "common"],
        weight: float,
        method: Component,
        model: Model,
        vector: Tensor,
        shares: Sequence[float] | None = None,
        trained_on: Literal["", "all", "train"] = "",
    ) -> "Weighted":
        """Create from a vector of the whole model."""
        model.write(vector)
        return cls(name, weight, method, model.state_dict(), shares, trained_on)


@dataclass(frozen=True, eq=False)
class Artefact:
    """A client's model: description, tensors by name, and networks."""

    info: ModelInfo
    tensors: Mapping[str, Tensor]
    nets: tuple[nn.Module, ...]

    @property
    def preprocessing(self) -> Preprocessing:
        """Conversion of raw samples to inputs of the networks."""
        inputs, scaler = self.info.inputs, None
        if inputs.scaled:
            scaler = Scaler(*(self.tensors[f"scaler.{name}"].numpy() for name in ("centre", "factor")))
        return Preprocessing(tuple(inputs.shape), scaler, inputs.centred, inputs.schema, inputs.pixels)

    @torch.inference_mode()
    def probabilities(self, samples: NDArray[Any], used: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """Probabilities (models, samples, classes) of each model for raw samples in the format of a data set.

        Models that are not ``used`` are not evaluated: their probabilities are 0.
        """
        prepare = self.preprocessing
        found = np.zeros((len(self.nets), len(samples), len(self.info.classes)))
        for start in range(0, len(samples), ROWS):
            rows = slice(start, start + ROWS)
            x = in_training_layout(prepare(samples[rows]))
            for place, net in enumerate(self.nets):
                if used is not None and not used[place]:
                    continue
                found[place, rows] = torch.log_softmax(net(x), 1).double().exp().clamp(max=1).numpy()
        return found


def make_artefact(
    *,
    model: Component,
    experts: Sequence[Weighted],
    preprocessing: Preprocessing,
    class_names: Sequence[str],
    metric: str,
    provenance: Provenance,
    performance: Performance | None = None,
) -> Artefact:
    """Create a client's model from its parts; reject parts that could not be loaded again."""
    for component in (model, *(each.method for each in experts)):
        if component.given is not None:
            raise ComityError(f"the {component.kind} {component} was given in Python, and no file can name it")
    scaler = preprocessing.scaler
    inputs = Inputs(
        shape=list(preprocessing.shape),
        scaled=scaler is not None,
        pixels=preprocessing.pixels,
        centred=preprocessing.centred,
        schema=preprocessing.schema,
    )
    infos = [
        ExpertInfo(
            name=each.name,
            weight=each.weight,
            method=each.method.plain(),
            trained_on=each.trained_on,
            shares=None if each.shares is None else [float(share) for share in each.shares],
        )
        for each in experts
    ]
    info = ModelInfo(
        format=FORMAT,
        model=model.plain(),
        classes=list(class_names),
        inputs=inputs,
        experts=infos,
        metric=metric,  # type: ignore[arg-type]  # checked below
        provenance=provenance,
        performance=performance,
    )
    info = from_json(ModelInfo, to_json(info).encode(), "the model")  # with all checks of a file
    tensors = {f"{each.name}.{name}": tensor.cpu() for each in experts for name, tensor in each.tensors.items()}
    if scaler is not None:
        tensors |= {"scaler.centre": torch.from_numpy(scaler.centre), "scaler.factor": torch.from_numpy(scaler.factor)}
    checks = check_samples(preprocessing)
    tensors["check.x"] = torch.from_numpy(checks)
    _check_finite(tensors, "the model")
    artefact = Artefact(info, tensors, tuple(_network(info, each, tensors) for each in info.experts))
    tensors["check.probabilities"] = torch.from_numpy(artefact.probabilities(checks))
    return artefact


def check_samples(preprocessing: Preprocessing) -> NDArray[Any]:
    """Synthetic raw samples that no client has. Features are drawn around their means, and one of them is missing."""
    random, shape = numpy_generator(0, "check samples"), preprocessing.shape
    shape = (*shape[1:], shape[0]) if len(shape) == 3 else shape
    if preprocessing.pixels:
        return random.integers(0, 256, (CHECKS, *shape), dtype=np.uint8)
    x = random.standard_normal((CHECKS, *shape))
    if (scaler := preprocessing.scaler) is not None:
        factor = scaler.factor.reshape(-1, *[1] * (len(shape) - 1))
        x = scaler.centre.reshape(factor.shape) + x * np.where(factor > 0, 1 / np.where(factor > 0, factor, 1), 0)
        x[0, 0] = np.nan
    return x.astype(np.float32)


def write_model(folder: Path, artefact: Artefact) -> None:
    """Write the folder of a model; ``model.json`` comes last, so that an interrupted write leaves no valid model."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomically(folder / TENSORS) as part:
        write_tensors(part, artefact.tensors, {"client": artefact.info.provenance.client, "comity": __version__})
        info = msgspec.structs.replace(artefact.info, digest=_digest(part))
    write_text(folder / CARD, markdown(info))
    write_text(folder / INFO, to_json(info, indent=2) + "\n")


def read_model(path: Path | str, *, allow_code: bool = False) -> Artefact:
    """Read the model in a folder; ``allow_code``: it may name your own networks and methods."""
    folder = model_folder(Path(path))
    file = folder / INFO
    if (size := file.stat().st_size) > MOST_INFO:
        raise ComityError(f"{file} has {size} bytes; at most {MOST_INFO} are read")
    content = file.read_bytes()
    version = from_json(Version, content, str(file)).format
    if not isinstance(version, int) or not 1 <= version <= FORMAT:
        newer = isinstance(version, int) and version > FORMAT
        advice = "; it needs a newer comity" if newer else ""
        raise ComityError(f"{file} has the format {one_line(version, 20)}; this comity reads {FORMAT}{advice}")
    info = from_json(ModelInfo, content, str(file))
    if not allow_code:
        reject_code([{"model": info.model}, *({"method": each.method} for each in info.experts)], str(file))
    try:
        return _checked(info, folder / TENSORS)
    except ComityError:
        raise
    except Exception as error:  # a damaged file, or a network that cannot be built with its options
        raise ComityError(f"{folder / TENSORS} cannot be read: {one_line(error, 200)}") from error


def model_folder(path: Path) -> Path:
    """The folder of one model: this one, or that of the file. Raises an error if there are several models."""
    folder = path.parent if path.name in (INFO, TENSORS, CARD) else path
    if (folder / INFO).is_file():
        return folder
    inside = sorted(file.parent for file in (*folder.glob(f"*/{INFO}"), *folder.glob(f"{schema.MODELS}/*/{INFO}")))
    if len(inside) == 1:
        return inside[0]
    if inside:
        shown = ", ".join(map(str, inside[:4])) + (", …" if len(inside) > 4 else "")
        raise ComityError(f"{path} holds the models of {len(inside)} clients; name one: {shown}")
    if not path.exists():
        raise ComityError(f"{path}: no such file or folder")
    raise ComityError(f"{path} holds no model: there is no {INFO} in it")


def _checked(info: ModelInfo, file: Path) -> Artefact:
    """Load the tensors of a model; they must fit its networks and reproduce the stored predictions."""
    if not file.is_file():
        raise ComityError(f"{file} is missing")
    with safe_open(file, framework="pt") as opened:
        there = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        count, inputs = len(info.classes), info.inputs
        states = {each.name: _skeleton(info, each).state_dict() for each in info.experts}
        weights = {f"{expert}.{name}": tensor for expert, state in states.items() for name, tensor in state.items()}
        expected: dict[str, tuple[int, ...]] = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        if inputs.scaled:
            expected |= dict.fromkeys(("scaler.centre", "scaler.factor"), (inputs.shape[0],))
        raw = (*inputs.shape[1:], inputs.shape[0]) if len(inputs.shape) == 3 else tuple(inputs.shape)
        expected |= {"check.x": (CHECKS, *raw), "check.probabilities": (len(info.experts), CHECKS, count)}
        if there != expected:
            odd = sorted(name for name in there.keys() | expected if there.get(name) != expected.get(name))[0]
            raise ComityError(
                f"{file}: {one_line(odd, 80)} is {there.get(odd, 'missing')}; the model has {expected.get(odd, 'none')}"
            )
        if (size := file.stat().st_size) > installed() // 2:
            raise ComityError(f"{file} has {show_bytes(size)}, more than half of this machine's memory")
        tensors = {name: opened.get_tensor(name).clone() for name in expected}
    if _digest(file) != info.digest:
        raise ComityError(f"{file} is not the file that {INFO} was written for")
    _check_finite(tensors, str(file))
    kinds = {name: tensor.dtype for name, tensor in weights.items()}
    kinds |= {"check.x": torch.uint8 if inputs.pixels else torch.float32, "check.probabilities": torch.float64}
    kinds |= dict.fromkeys(("scaler.centre", "scaler.factor"), torch.float64)
    for name, kind in kinds.items():
        if name in tensors and tensors[name].dtype != kind:
            raise ComityError(f"{file}: {name} is of type {tensors[name].dtype}; expected {kind}")
    artefact = Artefact(info, tensors, tuple(_network(info, each, tensors) for each in info.experts))
    off = np.abs(artefact.probabilities(tensors["check.x"].numpy()) - tensors["check.probabilities"].numpy()).max()
    if not off <= TOLERANCE:
        raise ComityError(f"{file}: the model does not give its stored predictions; the difference is {off:.2g}")
    return artefact


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    for name, tensor in tensors.items():
        if name != "check.x" and not bool(torch.isfinite(tensor).all()):
            raise ComityError(f"{where}: {one_line(name, 80)} holds numbers that are not finite")


def _build(info: ModelInfo, expert: ExpertInfo) -> nn.Module:
    shape, classes = tuple(info.inputs.shape), len(info.classes)
    net = Component.parse("model", info.model).build(shape=shape, classes=classes)
    net = Component.parse("method", expert.method).build().build(with_head(net, shape, classes))
    assert isinstance(net, nn.Module)
    return net


def _skeleton(info: ModelInfo, expert: ExpertInfo) -> nn.Module:
    """The network without memory, so that its size in the description is compared with the tensors first.

    A user's own network, whose code is trusted, may not support this.
    """
    if code_in({"model": info.model, "method": expert.method}):
        with torch.random.fork_rng(devices=[]):
            return _build(info, expert)
    with torch.device("meta"):
        return _build(info, expert)


def _network(info: ModelInfo, expert: ExpertInfo, tensors: Mapping[str, Tensor]) -> nn.Module:
    prefix = f"{expert.name}."
    state = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    net = _skeleton(info, expert)
    net.load_state_dict(state, assign=True)
    if any(tensor.is_meta for tensor in (*net.parameters(), *net.buffers())):  # tensors outside its state
        with torch.random.fork_rng(devices=[]):
            net = _build(info, expert)
        net.load_state_dict(state)
    return net.eval().requires_grad_(False)
