import copy

import pytest
import torch
from torch import nn

from comity import ComityError
from comity.nn import MLP, Descent, Model, ResNet4, Step, can_compile, descend

SHAPE = (1, 8, 8)


def mlp(**options: object) -> Model:
    return Model(MLP(SHAPE, 4, widths=(6,)), **options)  # type: ignore[arg-type]


def test_a_vector_written_is_the_vector_read() -> None:
    model = mlp()
    vector = torch.arange(model.size(), dtype=torch.float32)
    model.write(vector)
    assert torch.equal(model.read(), vector)
    assert torch.equal(torch.cat([model.read("body"), model.read("head")]), vector)
    model.write(-model.read("head"), "head")
    assert torch.equal(model.read("body"), vector[: model.size("body")])
    assert torch.equal(model.read("head"), -vector[model.size("body") :])


def test_a_vector_is_held_until_something_changes() -> None:
    model, x, y = mlp(), torch.randn(4, *SHAPE), torch.arange(4)
    vector, other = torch.randn(model.size()), torch.randn(model.size())

    def steps_in_c() -> None:
        if can_compile(model, 4):
            descend(model, (), Step(lr=0.1), None, x, y, torch.arange(4), [4])

    changes = (
        lambda: model.write(other),
        lambda: model.write(other[: model.size("body")], "body"),
        lambda: Descent(model, (), Step(lr=0.1)).step(x, y),
        steps_in_c,
        lambda: vector.neg_(),
        lambda: model.hold(other),
    )
    for change in (lambda: None, *changes):
        change()
        model.hold(vector)
        assert torch.equal(model.read(), vector)
    before = model.tensors()[0]._version
    model.hold(vector)
    assert model.tensors()[0]._version == before  # nothing was written
    twin = copy.deepcopy(model)
    twin.net.get_submodule("head").weight.data.zero_()  # torch does not count this change
    twin.hold(vector)
    assert torch.equal(twin.read(), vector)


def test_weights_are_read_and_written_where_they_are_now() -> None:
    model = mlp()
    vector, head = model.read(), model.net.get_submodule("head")
    head.weight.data = torch.ones_like(head.weight)
    assert torch.equal(model.read("head")[: head.weight.numel()], torch.ones(head.weight.numel()))
    model.write(vector)
    assert torch.equal(head.weight.detach().flatten(), vector[model.size("body") :][: head.weight.numel()])


def test_the_layout_names_each_layer_where_it_lies() -> None:
    model = Model(ResNet4(SHAPE, 4))
    vector = model.read()
    state = model.net.state_dict()
    layout = model.layout()
    assert layout.names[-2:] == ("head.weight", "head.bias")
    for layer in layout.layers:
        assert torch.equal(vector[layer.start : layer.stop].view(layer.shape), state[layer.name])
    # buffers lie behind the parameters
    assert layout.size == model.size() - model.size("buffers")
    assert torch.equal(vector[layout.size :], model.read("buffers"))


@pytest.mark.parametrize(
    ("shared", "policy", "together"),
    [
        (("body", "head"), "average", ("body", "head", "buffers")),
        (("body", "head"), "local", ("body", "head")),
        (("body",), "average", ("body", "buffers")),
        (("body",), "local", ("body",)),
        (("head",), "average", ("head",)),
        ((), "average", ()),
    ],
)
def test_buffers_follow_the_body_unless_they_are_local(
    shared: tuple[str, ...], policy: str, together: tuple[str, ...]
) -> None:
    model = Model(ResNet4(SHAPE, 4), shared, policy)
    assert model.parts("shared") == together
    assert set(model.parts("personal")) == {"body", "head", "buffers"} - set(together)
    assert model.size("shared") + model.size("personal") == model.size()


def test_counters_are_integers_and_no_part_of_the_vector() -> None:
    model = Model(ResNet4(SHAPE, 4))
    model.net(torch.randn(3, *SHAPE))
    assert model.counters.dtype == torch.int64
    assert (model.counters == 1).all()
    model.counters = model.counters + 6
    tracked = {name: value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")}
    assert tracked
    assert all(value.dtype == torch.int64 and int(value) == 7 and value.ndim == 0 for value in tracked.values())


def test_gradients_are_made_for_the_parts_in_training_alone() -> None:
    model = mlp()

    def fail() -> None:
        with model.training("head") as params:
            assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
            assert len(params) == 2
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert all(p.requires_grad for p in model.parameters())


def test_a_network_without_body_and_head_is_refused_in_words() -> None:
    with pytest.raises(ComityError, match="needs two submodules, `body`"):
        Model(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))


def test_a_vector_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a vector of 3 numbers for head, which has 28"):
        mlp().write(torch.zeros(3), "head")
