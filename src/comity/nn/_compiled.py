"""Plain SGD on a small chain in C: one call does all steps and releases Python's lock.

``steps.c`` is compiled by the machine's own compiler on first use, and kept in the user's cache. Without a compiler or
AVX2, or if the compiled steps do not agree with ``Descent``, ``Descent`` trains the network; the two differ only by
rounding.
"""

import copy
import ctypes
import hashlib
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from comity._write import atomically
from comity.nn._chain import Descent, Gradients, Layers, Step, chain_of
from comity.nn._small import LeNet5

if TYPE_CHECKING:
    from comity.nn._model import Model

CONV, POOL, RELU, FLAT, LINEAR = range(5)
MOST_CHANNELS = 16
"""Maximum channels of a convolution: with more, torch is faster, except for small batches with wide instructions."""
SMALL_BATCH, WIDE = 32, 16  # samples, and numbers per instruction (AVX-512)
GRADIENT = Step(lr=-1.0, decay=-1.0)
"""A step that replaces weights by their gradient."""
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-lm")


class _Layer(ctypes.Structure):
    """``layer_t`` of ``steps.c``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "c", "h", "w", "C", "H", "W", "k", "pad", "learns")),
        *(
            (before + name + after, ctypes.c_void_p)
            for before, after in (("", ""), ("new_", ""), ("", "_anchor"))
            for name in ("weight", "bias")
        ),
    )


def can_compile(model: "Model", batch_size: int) -> bool:
    """Whether the compiled steps are available, support this network, and are at least as fast as torch."""
    layers = chain_of(model.net)
    if layers is None or not all(_takes(layer) for _, layer in layers) or not _agrees():
        return False
    return batch_size <= _largest_batch(layers)


def _largest_batch(layers: Layers) -> float:
    """The largest batch for which torch is not faster."""
    channels = max((layer.out_channels for _, layer in layers if isinstance(layer, nn.Conv2d)), default=0)
    library = _library()
    assert library is not None
    return math.inf if channels <= MOST_CHANNELS else SMALL_BATCH if library.comity_lanes() >= WIDE else 0


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
    """Whether the compiled steps exist and agree with ``Descent`` on a small network with every kind of layer."""
    from comity.nn._model import Model  # which imports this file

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
    model: "Model",
    parts: Sequence[str],
    step: Step,
    anchor: Tensor | None,
    x: Tensor,
    y: Tensor,
    order: Tensor,
    sizes: Sequence[int],
) -> float:
    """Take a step on each batch of ``sizes``, with the samples in this ``order``; returns the sum of mean losses."""
    library = _library()
    assert library is not None
    if not sizes:
        return 0.0
    model.held = None  # torch does not see these steps
    program, trained = _program(model.net, x.shape[1:]), model.parts(*parts)
    toward = {key: _laid_out(tensor) for key, tensor in step.toward(model, parts, anchor).items()}
    for place, part, tensors in program.learning:
        layer = program.layers[place]
        layer.learns = part in trained
        for name, tensor in tensors.items():
            setattr(layer, f"{name}_anchor", toward[id(tensor)].data_ptr() if id(tensor) in toward else None)
    return program.descend(program.layers, x, y, order, sizes, step)


class CompiledGradients:
    """``Gradients`` in C, for batches for which torch is not faster; the two differ only by rounding."""

    def __init__(self, module: nn.Module, layers: Layers, parts: Sequence[str]) -> None:
        self._module, self._chain, self._parts, self._most = module, layers, parts, _largest_batch(layers)
        self._program: _Program | None = None
        self._order = torch.arange(0)

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        if len(y) > self._most:
            return Gradients(self._chain, self._parts)(x, y)
        if self._program is None or self._program.shape != x.shape[1:]:
            self._program = _program(self._module, x.shape[1:], self._chain)
            self._layers = type(self._program.layers).from_buffer_copy(self._program.layers)
            self._wanted = []
            for place, part, tensors in self._program.learning:
                layer = self._layers[place]
                layer.learns, layer.weight_anchor, layer.bias_anchor = part in self._parts, None, None
                self._wanted += [(layer, f"new_{name}", tensor) for name, tensor in tensors.items() if layer.learns]
        grads = [torch.empty_like(tensor) for _, _, tensor in self._wanted]
        for (layer, name, _), grad in zip(self._wanted, grads, strict=True):
            setattr(layer, name, grad.data_ptr())
        if len(y) > len(self._order):
            self._order = torch.arange(len(y))
        loss = self._program.descend(self._layers, x, y, self._order, [len(y)], GRADIENT)
        return torch.tensor(loss), grads


def outputs(model: "Model", x: Tensor) -> Tensor:
    """The network's outputs for these samples."""
    library, program = _library(), _program(model.net, x.shape[1:])
    assert library is not None
    layers, x, found = program.layers, program.samples(x), torch.empty(len(x), program.layers[-1].C)
    library.comity_outputs(layers, len(layers), program.room(0), x.data_ptr(), len(x), found.data_ptr())
    return found


def _program(module: nn.Module, shape: Sequence[int], chain: Layers | None = None) -> "_Program":
    """The program of a module for samples of this shape; ``chain``: its layers, if it is only a part of a network."""
    program = _programs.get(module)
    if program is None or program.shape != shape or not program.in_place():
        chain = chain or chain_of(module)
        assert chain is not None
        program = _programs[module] = _Program(chain, tuple(shape))
    return program


class _Program:
    """A chain in C for samples of one shape. Creating it takes as long as a few steps of a small network."""

    def __init__(self, chain: Layers, shape: tuple[int, ...]) -> None:
        self.shape = size = shape
        self.learning: list[tuple[int, str, dict[str, Tensor]]] = []
        """The layers with weights: their places, their parts, and weight and bias by name."""
        layers: list[_Layer] = []
        for part, layer in chain:
            before, more = size if len(size) == 3 else (size[0], 0, 0), {}
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                assert layer.bias is not None
                tensors: dict[str, Tensor] = {"weight": layer.weight, "bias": layer.bias}
                for tensor in tensors.values():
                    assert tensor.dtype == torch.float32
                    assert tensor.data_ptr() == _laid_out(tensor.detach()).data_ptr()
                self.learning.append((len(layers), part, tensors))
                more = {prefix + name: tensor.data_ptr() for name, tensor in tensors.items() for prefix in ("", "new_")}
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
                if not layers:  # without image layers the samples are flat already
                    continue
            else:
                assert isinstance(layer, nn.Linear)
                kind, size = LINEAR, (layer.out_features,)
            after = size if len(size) == 3 else (size[0], 0, 0)
            layers.append(_Layer(kind, *before, *after, **more))
        self.layers = (_Layer * len(layers))(*layers)
        self._room, self._most = torch.zeros(0, dtype=torch.int64), -1

    def in_place(self) -> bool:
        """Whether the module's weights still have the same addresses."""
        return all(
            getattr(self.layers[place], name) == tensor.data_ptr()
            for place, _, tensors in self.learning
            for name, tensor in tensors.items()
        )

    def samples(self, x: Tensor) -> Tensor:
        """The samples in the memory layout of ``steps.c``."""
        return x.contiguous(memory_format=torch.channels_last) if self.layers[0].h else x.flatten(1).contiguous()

    def room(self, most: int) -> int:
        """Address of memory for activations and gradients of batches up to this size, reused by later calls."""
        if most > self._most:
            library = _library()
            assert library is not None
            self._most, size = most, library.comity_room(self.layers, len(self.layers), most)
            self._room = torch.zeros(size // 8 + 1, dtype=torch.int64)
        return self._room.data_ptr()

    def descend(
        self, layers: "ctypes.Array[_Layer]", x: Tensor, y: Tensor, order: Tensor, sizes: Sequence[int], step: Step
    ) -> float:
        """Take steps with these layers: the program's own, or a copy of them; returns the sum of mean losses."""
        library = _library()
        assert library is not None
        x, counts = self.samples(x), (ctypes.c_int64 * len(sizes))(*sizes)
        places = self.room(max(sizes)), x.data_ptr(), y.data_ptr(), order.data_ptr(), counts
        return float(library.comity_descend(layers, len(layers), *places, len(sizes), step.lr, step.rest))


_programs: WeakKeyDictionary[nn.Module, _Program] = WeakKeyDictionary()
"""The newest program of each module; a model is used by one thread at a time."""


def _laid_out(tensor: Tensor) -> Tensor:
    """The tensor in the memory layout of ``steps.c``: weights of a convolution with channels last."""
    return tensor.contiguous(memory_format=torch.channels_last if tensor.ndim == 4 else torch.contiguous_format)


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled steps; ``None`` if they cannot be compiled, or if other users may write them."""
    compiler = shutil.which("cc")
    if compiler is None or os.name != "posix":
        return None
    source = files("comity.nn").joinpath("steps.c").read_text()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "comity"
    try:
        # "native" differs between machines, and several machines may share a cache
        native = subprocess.run(
            [compiler, "-march=native", "-dM", "-E", "-"], input=b"", capture_output=True, check=True
        )
        if b"__AVX2__" not in native.stdout:  # without AVX2, compiled steps may be slower than torch
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
            return None  # another user could have placed code there
        library = ctypes.CDLL(str(file))
    except (OSError, subprocess.SubprocessError, RuntimeError):  # RuntimeError: no home folder
        return None
    number, pointer, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
    library.comity_lanes.restype = library.comity_room.restype = number
    library.comity_descend.restype, library.comity_outputs.restype = ctypes.c_double, None
    library.comity_room.argtypes = [pointer, number, number]
    library.comity_descend.argtypes = [pointer, number, *[pointer] * 5, number, real, real]
    library.comity_outputs.argtypes = [pointer, number, pointer, pointer, number, pointer]
    return library
