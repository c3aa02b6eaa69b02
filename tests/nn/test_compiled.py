"""The compiled steps do what autograd does to any small chain, and nobody else's code is ever loaded for them."""

import copy
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

from comity.nn import MLP, Model, Step, can_compile, chain_of, descend, outputs
from comity.nn import _compiled as compiled
from comity.nn._chain import Gradients
from comity.nn._net import Net


class AnyChain(Net):
    """Convolutions with or without padding, pooling and ReLU in any order, then fully connected layers."""

    def __init__(self, shape: tuple[int, int, int], layers: list[str], widths: list[int], classes: int) -> None:
        super().__init__(shape, classes)
        body: list[nn.Module] = []
        channels, height, width = shape
        for word in layers:
            if word == "pool" and min(height, width) > 1:
                body.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            elif word == "relu":
                body.append(nn.ReLU())
            elif word.startswith("conv"):
                out, k, pad = (int(number) for number in word[4:].split("/"))
                if min(height, width) + 2 * pad < k:
                    continue
                body.append(nn.Conv2d(channels, out, k, padding=pad))
                channels, height, width = out, height + 2 * pad - k + 1, width + 2 * pad - k + 1
        body.append(nn.Flatten())
        size = channels * height * width
        for wide in widths:
            body += [nn.Linear(size, wide), nn.ReLU()]
            size = wide
        self.body, self.head = nn.Sequential(*body), nn.Linear(size, classes)


def has_a_kink(net: AnyChain, x: torch.Tensor) -> bool:
    """Whether rounding may decide which input a pooling or a ReLU takes, so that gradients may differ."""
    values = x.double()
    for _, layer in chain_of(copy.deepcopy(net).double()):
        gaps = values.abs()
        if isinstance(layer, nn.MaxPool2d):
            windows = F.unfold(values.reshape(-1, 1, *values.shape[2:]), 2, stride=2)
            gaps = windows.topk(2, dim=1).values.diff(dim=1).abs()
        if isinstance(layer, nn.MaxPool2d | nn.ReLU) and ((gaps > 0) & (gaps < 1e-6)).any():
            return True
        values = layer(values)
    return False


KERNELS = [(1, 0), (2, 1), (3, 0), (3, 2), (5, 0), (5, 2), (5, 4)]
channels = st.integers(1, 9) | st.sampled_from([16, 24, 33, 64, 112])
convolutions = st.tuples(channels, st.sampled_from(KERNELS)).map(
    lambda each: f"conv{each[0]}/{each[1][0]}/{each[1][1]}"
)
layers = st.lists(st.one_of(convolutions, st.sampled_from(["pool", "relu"])), max_size=5)


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 11), st.integers(1, 11)),
    layers=layers,
    widths=st.lists(st.integers(1, 40), max_size=2),
    classes=st.integers(2, 18),
    sizes=st.lists(st.integers(1, 23), min_size=1, max_size=3),
    part=st.sampled_from([(), ("head",), ("body",)]),
    pull=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 999),
)
@example((2, 9, 7), ["conv23/5/4", "conv112/5/2"], [], 3, [11, 4], (), 0.3, 0)  # all ways to cut up wide channels
def test_every_chain_goes_the_way_of_autograd(shape, layers, widths, classes, sizes, part, pull, seed) -> None:
    torch.manual_seed(seed)
    model = Model(AnyChain(shape, layers, widths, classes))
    assert all(compiled._takes(layer) for _, layer in chain_of(model.net))
    assert compiled._agrees()
    if not model.parameters(*part):
        part = ()
    x, y = torch.randn(25, *shape), torch.randint(classes, (25,))
    orders = [torch.randperm(25)[:size] for size in sizes]
    anchor = torch.randn(model.size(*part)) if pull else None
    step, other = Step(lr=0.05, decay=0.1, pull=pull), copy.deepcopy(model)
    loss, expected = descend(model, part, step, anchor, x, y, torch.cat(orders), sizes), 0.0
    with other.training(*part) as params:
        pieces = other.split(anchor, *part) if anchor is not None else params
        for index in orders:
            assume(not has_a_kink(other.net, x[index]))
            value = F.cross_entropy(other.net(x[index]), y[index])
            expected += value.item()
            for param, grad, to in zip(params, torch.autograd.grad(value, params), pieces, strict=False):
                with torch.no_grad():
                    param -= step.lr * (grad + step.decay * param + pull * (param - to))
    assume(not has_a_kink(model.net, x))
    torch.testing.assert_close(model.read(), other.read(), rtol=2e-4, atol=2e-6)
    torch.testing.assert_close(outputs(model, x), model.net(x), rtol=2e-4, atol=2e-5)
    assert loss == pytest.approx(expected, rel=1e-4)
    for chain, names in ((chain_of(model.net), model.parts(*part)), (chain_of(model.net)[-1:], ("head",))):
        inputs = x if len(chain) > 1 else model.features(x).detach()
        find = compiled.CompiledGradients(model.net if len(chain) > 1 else model.net.head, chain, names)
        for index in orders:  # also after steps with an anchor, and for batches of other sizes
            (value, grads), (expected, wanted) = (
                each(inputs[index], y[index]) for each in (find, Gradients(chain, names))
            )
            torch.testing.assert_close((value, grads), (expected, wanted), rtol=2e-4, atol=2e-6)


def test_what_diverged_before_changes_no_bit() -> None:
    """The memory for activations is kept from call to call."""
    torch.manual_seed(0)
    model = Model(AnyChain((2, 9, 9), ["conv3/5/2", "pool", "relu", "conv4/3/0"], [5], 3))
    start, x, y = model.read(), torch.randn(7, 2, 9, 9), torch.arange(7) % 3

    def train(model: Model, x: torch.Tensor) -> torch.Tensor:
        model.write(start)
        descend(model, (), Step(lr=0.1), None, x, y, torch.arange(7).repeat(3), [4, 3, 7, 4, 3])
        return model.read()

    expected = train(copy.deepcopy(model), x)
    for broken in (torch.full_like(x, torch.nan), x * 1e38):
        assert not torch.isfinite(train(model, broken)).all()
        assert torch.equal(train(model, x), expected)


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_it_makes_no_difference_to_a_flat_net_how_images_lie(channels: int) -> None:
    shape = (channels, 5, 7)
    x, y, order = torch.randn(9, *shape), torch.arange(9) % 3, torch.randperm(9)
    found = []
    for form in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = Model(MLP(shape, 3, (4,)))
        loss = descend(model, (), Step(lr=0.1), None, x.contiguous(memory_format=form), y, order, [4, 5])
        found.append((loss, model.read(), outputs(model, x.contiguous(memory_format=form))))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][2], found[1][2])


def test_a_model_that_diverges_does_so_here_too() -> None:
    torch.manual_seed(0)
    model = Model(AnyChain((1, 4, 4), ["conv2/3/0", "relu"], [5], 3))
    x, y = torch.full((4, 1, 4, 4), 1e30), torch.arange(4) % 3
    descend(model, (), Step(lr=1e30), None, x, y, torch.arange(4).repeat(3), [4] * 3)
    assert not torch.isfinite(model.read()).all()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache of one's own, and nothing loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled._library.cache_clear()
    compiled._agrees.cache_clear()
    yield tmp_path / "comity"
    compiled._library.cache_clear()
    compiled._agrees.cache_clear()


def test_so_do_the_steps_of_machines_with_narrower_instructions(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX2 in place of AVX-512, on machines that have both."""
    narrow = ["-march=haswell" if flag == "-march=native" else flag for flag in compiled.FLAGS]
    monkeypatch.setattr(compiled, "FLAGS", narrow)
    test_every_chain_goes_the_way_of_autograd()
    assert fresh.exists()
    wide = Model(AnyChain((3, 8, 8), ["conv32/5/0"], [], 3))
    assert not can_compile(wide, batch_size=10)  # torch's own convolutions are faster there


def test_wide_convolutions_are_compiled_for_wide_instructions_and_small_batches() -> None:
    library, wide = compiled._library(), Model(AnyChain((3, 8, 8), ["conv32/5/0"], [], 3))
    assert can_compile(wide, batch_size=32) == (library.comity_lanes() == 16)
    assert not can_compile(wide, batch_size=33)


def test_it_is_compiled_once_into_a_folder_that_nobody_else_can_write_to(fresh: Path) -> None:
    assert compiled._agrees()
    (file,) = fresh.iterdir()
    assert (fresh.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o700)
    made = file.stat().st_mtime_ns
    compiled._library.cache_clear()
    assert compiled._library() is not None
    assert file.stat().st_mtime_ns == made
    for path in (fresh, file):
        path.chmod(0o722)
        compiled._library.cache_clear()
        assert compiled._library() is None
        path.chmod(0o700)


def test_without_a_compiler_or_with_one_that_fails_torch_does_the_steps(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = fresh.parent / "bin" / "cc"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o700)
    model = Model(AnyChain((1, 4, 4), [], [5], 3))
    for path in (str(fresh.parent), str(broken.parent) + os.pathsep + "/bin"):
        monkeypatch.setenv("PATH", path)
        compiled._library.cache_clear()
        compiled._agrees.cache_clear()
        assert not can_compile(model, batch_size=10)
        assert not list(fresh.glob("*.so"))


def test_steps_that_do_not_agree_are_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled._agrees()
    compiled._agrees.cache_clear()
    monkeypatch.setattr(compiled, "descend", lambda *_: 0.0)  # as if the compiled step did nothing
    assert not compiled._agrees()
    compiled._agrees.cache_clear()
