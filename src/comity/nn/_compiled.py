"""Plain SGD on a small chain as one call into C for all steps: no Python between them, and its lock is free meanwhile.

``steps.c`` is compiled by the machine's own compiler when it is first needed, and kept in the user's cache. Where there
is no compiler or no AVX2, or what it made does not agree with ``Descent``, nets train by that; the two differ by
rounding alone.
"""

import copy
import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from comity._write import atomically
from comity.nn._chain import Descent, Step, chain_of
from comity.nn._model import Model
from comity.nn._small import LeNet5

CONV, POOL, RELU, FLAT, LINEAR = range(5)
MOST_CHANNELS = 16
"""Of a convolution: with more, torch's own is the faster one, but for small batches by wide instructions."""
SMALL_BATCH, WIDE = 32, 16  # samples, and numbers that an instruction takes (AVX-512)
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-lm")


class _Layer(ctypes.Structure):
    """``layer_t`` of ``steps.c``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "c", "h", "w", "C", "H", "W", "k", "pad", "learns")),
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "weight_anchor", "bias_anchor")),
    )


def can_compile(model: Model, batch_size: int) -> bool:
    """Whether this net is a chain that the compiled steps take, they are to be had here, and torch is not faster."""
    layers = chain_of(model.net)
    if layers is None or not all(_takes(layer) for _, layer in layers) or not _agrees():
        return False
    channels = max((layer.out_channels for _, layer in layers if isinstance(layer, nn.Conv2d)), default=0)
    library = _library()
    assert library is not None
    return channels <= MOST_CHANNELS or (batch_size <= SMALL_BATCH and library.comity_lanes() >= WIDE)


def _takes(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        k, pad = layer.kernel_size[0], layer.padding[0]
        square = layer.kernel_size == (k, k) and layer.padding == (pad, pad) and isinstance(pad, int) and pad < k
        return square and layer.stride == layer.dilation == (1, 1)
    if isinstance(layer, nn.MaxPool2d):
        plain = layer.padding == 0 and layer.dilation == 1 and not layer.ceil_mode
        return plain and layer.kernel_size == layer.stride == 2
    return True


@cache
def _agrees() -> bool:
    """Whether there are compiled steps, and they do what ``Descent`` does to a small net with every kind of layer."""
    if _library() is None:
        return False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        compiled, x, y = Model(LeNet5((2, 9, 9), 3)), torch.randn(5, 2, 9, 9), torch.arange(5) % 3
    written, step, anchor = copy.deepcopy(compiled), Step(lr=0.1, decay=0.1, pull=0.5), torch.ones(compiled.size())
    descend(compiled, (), step, anchor, x, y, torch.arange(5), [5])
    Descent(written, (), step, anchor).step(x.contiguous(memory_format=torch.channels_last), y)
    pairs = ((compiled.read(), written.read()), (outputs(compiled, x), written.net(x)))
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in pairs)


def descend(
    model: Model,
    parts: Sequence[str],
    step: Step,
    anchor: Tensor | None,
    x: Tensor,
    y: Tensor,
    order: Tensor,
    sizes: Sequence[int],
) -> float:
    """A step on each batch: on so many of the samples in this order as ``sizes`` say. The sum of their mean losses."""
    library = _library()
    assert library is not None
    if not sizes:
        return 0.0
    model.held = None  # torch does not see these steps
    layers, held = _program(model, parts, step, anchor, x.shape[1:])
    x, counts = _samples(x, layers), torch.tensor(sizes)
    places = (tensor.data_ptr() for tensor in (x, y, order, counts))
    loss = float(library.comity_descend(layers, len(layers), *places, len(sizes), step.lr, step.rest))
    del held  # the anchors, to which the layers only point
    if loss < 0:
        raise MemoryError("no memory for a step")
    return loss


def outputs(model: Model, x: Tensor) -> Tensor:
    """What the net makes of these samples."""
    library = _library()
    assert library is not None
    layers, _ = _program(model, (), Step(lr=0.0), None, x.shape[1:])
    x, found = _samples(x, layers), torch.empty(len(x), layers[-1].C)
    if library.comity_outputs(layers, len(layers), x.data_ptr(), len(x), found.data_ptr()) < 0:
        raise MemoryError("no memory for a prediction")
    return found


def _samples(x: Tensor, layers: "ctypes.Array[_Layer]") -> Tensor:
    """As ``steps.c`` wants them for this chain."""
    return x.contiguous(memory_format=torch.channels_last) if layers[0].h else x.flatten(1).contiguous()


def _program(
    model: Model, parts: Sequence[str], step: Step, anchor: Tensor | None, shape: Sequence[int]
) -> tuple["ctypes.Array[_Layer]", dict[int, Tensor]]:
    """The chain as ``steps.c`` wants it, for samples of this shape; and the anchors, which must outlive it."""
    program = _programs.get(model)
    if program is None or program.shape != shape or not program.in_place():
        program = _programs[model] = _Program.of(model, tuple(shape))
    trained = model.parts(*parts)
    toward = {key: _laid_out(tensor) for key, tensor in step.toward(model, parts, anchor).items()}
    for layer, part, tensors in program.learning:
        layer.learns = part in trained
        for name, tensor in tensors.items():
            setattr(layer, f"{name}_anchor", toward[id(tensor)].data_ptr() if id(tensor) in toward else None)
    return program.layers, toward


@dataclass(frozen=True)
class _Program:
    """A model's chain in C for samples of one shape; to make it takes as long as some steps of a small net."""

    shape: tuple[int, ...]
    layers: "ctypes.Array[_Layer]"
    learning: list[tuple[_Layer, str, dict[str, Tensor]]]
    """The layers with weights, each with its part, and its weight and bias by name."""

    @classmethod
    def of(cls, model: Model, shape: tuple[int, ...]) -> "_Program":
        chain = chain_of(model.net)
        assert chain is not None
        layers: list[_Layer] = []
        learning: list[tuple[int, str, dict[str, Tensor]]] = []
        size = shape
        for part, layer in chain:
            before, more = size if len(size) == 3 else (size[0], 0, 0), {}
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                assert layer.bias is not None
                tensors: dict[str, Tensor] = {"weight": layer.weight, "bias": layer.bias}
                assert all(tensor.data_ptr() == _laid_out(tensor.detach()).data_ptr() for tensor in tensors.values())
                learning.append((len(layers), part, tensors))
                more = {name: tensor.data_ptr() for name, tensor in tensors.items()}
            if isinstance(layer, nn.Conv2d):
                kind, k, pad = CONV, layer.kernel_size[0], int(layer.padding[0])
                size = (layer.out_channels, *(side + 2 * pad - k + 1 for side in size[1:]))
                more |= {"k": k, "pad": pad}
            elif isinstance(layer, nn.MaxPool2d):
                kind, size = POOL, (size[0], *(side // 2 for side in size[1:]))
            elif isinstance(layer, nn.ReLU):
                kind = RELU
            elif isinstance(layer, nn.Flatten):
                kind, size = FLAT, (torch.Size(size).numel(),)
                if not layers:  # what has no image layers is flat from the start
                    continue
            else:
                assert isinstance(layer, nn.Linear)
                kind, size = LINEAR, (layer.out_features,)
            after = size if len(size) == 3 else (size[0], 0, 0)
            layers.append(_Layer(kind, *before, *after, **more))
        array = (_Layer * len(layers))(*layers)
        return cls(shape, array, [(array[place], part, tensors) for place, part, tensors in learning])

    def in_place(self) -> bool:
        """Whether the model's weights are still where they were."""
        return all(
            getattr(layer, name) == tensor.data_ptr()
            for layer, _, tensors in self.learning
            for name, tensor in tensors.items()
        )


_programs: WeakKeyDictionary[Model, _Program] = WeakKeyDictionary()
"""The newest of each model; a model is used by one thread at a time."""


def _laid_out(tensor: Tensor) -> Tensor:
    """The same, where it is not so already, as ``steps.c`` has weights: those of a convolution with channels last."""
    return tensor.contiguous(memory_format=torch.channels_last if tensor.ndim == 4 else torch.contiguous_format)


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled steps; ``None`` where they cannot be made, are not the user's own, or do not agree."""
    compiler = shutil.which("cc")
    if compiler is None or os.name != "posix":
        return None
    source = files("comity.nn").joinpath("steps.c").read_text()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "comity"
    try:
        # what the compiler makes of "native" differs by machine, and a cache may be shared by several
        native = subprocess.run(
            [compiler, "-march=native", "-dM", "-E", "-"], input=b"", capture_output=True, check=True
        )
        if b"__AVX2__" not in native.stdout:  # what the compiler makes of it elsewhere may be slower than torch
            return None
        key = hashlib.sha256(repr((source, FLAGS, native.stdout)).encode()).hexdigest()[:16]
        file = folder / f"steps-{key}.so"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            with atomically(file) as part:
                words = [compiler, "-x", "c", "-", "-o", str(part), *FLAGS]
                subprocess.run(words, input=source.encode(), capture_output=True, check=True)
                part.chmod(0o700)
        if any(path.stat().st_uid != os.getuid() or path.stat().st_mode & 0o022 for path in (folder, file)):
            return None  # somebody else could have put code there
        library = ctypes.CDLL(str(file))
    except (OSError, subprocess.SubprocessError, RuntimeError):  # RuntimeError: there is no home
        return None
    library.comity_lanes.restype = ctypes.c_int64
    library.comity_descend.restype = library.comity_outputs.restype = ctypes.c_double
    number, pointer, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
    library.comity_descend.argtypes = [pointer, number, *[pointer] * 4, number, real, real]
    library.comity_outputs.argtypes = [pointer, number, pointer, number, pointer]
    return library
