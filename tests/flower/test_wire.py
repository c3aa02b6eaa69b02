"""Payloads arrive as they were sent."""

import math
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from torch import Tensor

from comity.flower import InProcessGrid
from comity.flower import _wire as wire

TENSORS = {
    "a vector": torch.tensor([1.0, -0.0, math.inf, math.nan, 1e-45, 1 / 3]),
    "0-dim": torch.tensor(0.1),
    "0-dim integer": torch.tensor(7),
    "empty": torch.empty(0),
    "empty of a shape": torch.empty(3, 0, 2, dtype=torch.int64),
    "layers.0/weight.µ": torch.randn(3, 4),
    "double": torch.tensor([math.pi], dtype=torch.float64),
    "half": torch.tensor([0.1], dtype=torch.float16),
    "truth": torch.tensor([True, False]),
    "bytes": torch.arange(256).to(torch.uint8),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "channels last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
}
PLAIN = {"size": 12, "loss": 0.1 + 0.2, "nothing": math.nan, "large": 2**62, "general": True, "told": "ok"}


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def check(sent: dict[str, Any], arrived: dict[str, Any]) -> None:
    assert sent.keys() == arrived.keys()
    for name, value in sent.items():
        if isinstance(value, Tensor):
            assert same(value, arrived[name]), name
        else:
            assert type(arrived[name]) is type(value)
            assert repr(arrived[name]) == repr(value)


def test_names_shapes_and_bits_survive_the_way_there_and_back() -> None:
    app = ClientApp()

    @app.train("echo")
    def echo(message: Message, _: Context) -> Message:
        asked = wire.read_question(message.content)
        check(TENSORS | PLAIN, asked.payload)
        assert (asked.run, asked.round) == ("run", 3)
        return Message(wire.answer(asked.payload), reply_to=message)

    grid = InProcessGrid(app, clients=1)
    question = wire.question("run", 3, TENSORS | PLAIN, wire.Arrays())
    (reply,) = grid.send_and_receive([Message(question, grid.node_of(0), "train.echo")])
    check(TENSORS | PLAIN, wire.read_answer(reply.content))


def test_a_message_has_one_record_of_each_kind_for_flowers_mods() -> None:
    for payload in ({}, {"theta": torch.ones(2), "size": 3}):
        asked = wire.question("run", 1, payload, wire.Arrays())
        assert [type(record) for record in asked.values()] == [ArrayRecord, ConfigRecord]
        told = wire.answer(payload)
        assert {type(record) for record in told.values()} == {ArrayRecord, MetricRecord, ConfigRecord}


def test_a_tensor_is_turned_into_bytes_once() -> None:
    arrays, theta = wire.Arrays(), torch.ones(3)
    one, other = (wire.question("run", 1, {"theta": theta}, arrays) for _ in range(2))
    assert one.array_records["arrays"]["theta"] is other.array_records["arrays"]["theta"]


def test_what_arrives_can_be_written_to() -> None:
    (arrived,) = wire.tensors(ArrayRecord({"x": wire.Arrays()(torch.zeros(2))})).values()
    arrived += 1
