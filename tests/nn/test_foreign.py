"""Nets that were not made for comity: where their head is, and what can be done without one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import comity
from comity import ComityError
from comity.nn import Model, draws_random_numbers, foreign, with_head
from helpers import assert_reproducible, assert_same


class Plain(nn.Module):
    """A head that is neither last nor called head, behind a layer of the same width."""

    def __init__(self, num_classes: int = 7) -> None:
        super().__init__()
        self.fc = nn.Linear(5, num_classes)
        self.stem = nn.Sequential(nn.Linear(25, 5), nn.ReLU(), nn.Linear(5, 5), nn.BatchNorm1d(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stem(x))


class Answer:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Wrapped(Plain):
    """Answers as Hugging Face's nets do."""

    def forward(self, x: Tensor) -> Answer:  # type: ignore[override]
        return Answer(super().forward(x))


class Headless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(25, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.stem(x).tanh()


@pytest.mark.parametrize("kind", [Plain, Wrapped])
def test_the_head_is_found_and_the_net_stays_what_it_was(kind: type[Plain]) -> None:
    net, x = kind(3).eval(), torch.randn(4, 25)
    answer = net(x)
    before = getattr(answer, "logits", answer)
    split = with_head(net, (25,), 3).eval()
    assert torch.equal(split(x), before)
    assert isinstance(split.head, nn.Linear)
    assert torch.equal(split.head(split.body(x)), before)
    assert split.body(x).shape == (4, 5)
    assert Model(split).layout("head").size == 5 * 3 + 3


def test_another_number_of_classes_makes_a_new_head() -> None:
    assert foreign(Plain, (25,), 2)(torch.randn(4, 25)).shape == (4, 2)  # it asks for the number
    assert with_head(Plain(1000), (25,), 2)(torch.randn(4, 25)).shape == (4, 2)


def test_a_named_head() -> None:
    split = with_head(Plain(3), (25,), 3, head="fc")
    assert isinstance(split.head, nn.Linear)
    with pytest.raises(ComityError, match=r"unknown linear layer 'fcc' \(model.head\); did you mean fc\?"):
        with_head(Plain(3), (25,), 3, head="fcc")


def test_without_a_head() -> None:
    options = {"data": "heart", "model": Headless, "rounds": 2, "reference": "none"}
    assert len(comity.run(method="FedAvg", **options).columns["L-acc"]) == 4
    assert len(comity.run(method="Ditto", **options).columns["L-acc"]) == 4
    for method in ("FedRep", "LG-FedAvg"):
        with pytest.raises(ComityError, match="nothing is learnt in the head of model Whole"):
            comity.run(method=method, **options)
    with pytest.raises(ComityError, match="method FedROD needs a model whose head is one linear layer"):
        comity.run(method="FedROD", **options)


def test_a_body_that_learns_nothing() -> None:
    with pytest.raises(ComityError, match="nothing is learnt in the body of model Logistic"):
        comity.run(data="heart", method="FedRep", model="logistic", rounds=1, reference="none")


def test_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n\n"
        "def small(num_classes):\n    return nn.Sequential(nn.Linear(25, 6), nn.ReLU(), nn.Linear(6, num_classes))\n"
        "THREE = 3\n\ndef three():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    options = {"data": "heart", "method": "FedRep", "rounds": 1, "reference": "none"}
    run = comity.run(model="my_nets:small", out=tmp_path / "run", **options)
    other = comity.run(model={"name": "my_nets:small", "head": "2"}, **options)
    assert run.columns == other.columns
    with pytest.raises(ComityError, match="names the model 'my_nets:small', which is code that does not come with"):
        comity.Config.load(tmp_path / "run" / "config.yaml")
    for model, line in {
        "my_nets:nothing": "model 'my_nets:nothing' could not be imported",
        "my_nets:THREE": "is no class or function that creates a network",
        "my_nets:three": "model must be a torch.nn.Module or make one, got a int",
        "my nets:three": "not the dotted path",
    }.items():
        with pytest.raises(ComityError, match=line):
            comity.run(model=model, **options)


def test_samples_that_a_net_cannot_take() -> None:
    with pytest.raises(ComityError, match="model Plain cannot take samples of 6: mat1 and mat2"):
        with_head(Plain(), (6,), 2)


class Dropping(Plain):
    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.stem.append(nn.Dropout(0.5))


def test_dropout_gives_the_same_bits_for_any_number_of_workers_and_after_a_stop(tmp_path: Path) -> None:
    assert draws_random_numbers(Dropping(2), (25,))
    assert not draws_random_numbers(Plain(2), (25,))
    assert not draws_random_numbers(Plain(2), (7,))  # it cannot even be tried
    options = {"data": "heart", "model": Dropping, "method": "Ditto", "rounds": 3, "reference": "none"}
    one = assert_reproducible(options | {"workers": 1}, tmp_path)
    other = comity.run(workers=1, seed=1, **options)
    assert not torch.equal(one.server.theta, other.server.theta)


# Real ones. Hugging Face's package is no dependency: `pip install transformers` has these run.


def resnet_from_config(num_classes: int) -> nn.Module:
    """Batch normalisation with its counters; the head is inside a Sequential."""
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": num_classes}
    return ResNetForImageClassification(ResNetConfig(num_channels=1, layer_type="basic", **sizes))


def vit_from_config(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Attention and dropout."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    image = {"image_size": shape[1], "patch_size": 4, "num_channels": shape[0], "num_labels": classes}
    return ViTForImageClassification(ViTConfig(hidden_dropout_prob=0.1, **image, **sizes))


@pytest.mark.parametrize("make", [resnet_from_config, vit_from_config])
def test_nets_of_hugging_face(make: Callable[..., nn.Module]) -> None:
    pytest.importorskip("transformers", reason="needs Hugging Face's nets: pip install transformers")
    net, x = make(4, (1, 16, 16)) if make is vit_from_config else make(4), torch.randn(3, 1, 16, 16)
    before = net.eval()(x).logits
    split = with_head(net, (1, 16, 16), 4).eval()
    assert torch.equal(split(x), before)
    assert split.body(x).shape == (3, 16)
    options = {"data": {"name": "synthetic", "samples": 12, "classes": 4, "size": 16}, "clients": 3, "rounds": 2}
    one, two = (
        comity.run(model=make, method="FedRep", workers=workers, reference="none", **options) for workers in (1, 2)
    )
    assert_same(one, two)
    counters = one.site.model().counters
    assert len(counters) == sum(isinstance(layer, nn.BatchNorm2d) for layer in net.modules())
    for state in one.server.link.states().values():  # two rounds of a batch, for the head and for the body
        assert not len(counters) or (state.engine["counters"] > 0).all()
