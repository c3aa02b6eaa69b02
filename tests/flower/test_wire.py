"""Messages arrive as they were sent."""

import math
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from torch import Tensor

from comity.flower import _wire as wire
from comity.flower._wire import Place
from comity.methods import Question, Reply
from in_process import InProcessGrid

TENSORS = {
    "vector": torch.tensor([1.0, -0.0, math.inf, math.nan, 1e-45, 1 / 3]),
    "zero_dim": torch.tensor(0.1),
    "integer": torch.tensor(7),
    "empty": torch.empty(0),
    "empty_of_a_shape": torch.empty(3, 0, 2, dtype=torch.int64),
    "double": torch.tensor([math.pi], dtype=torch.float64),
    "half": torch.tensor([0.1], dtype=torch.float16),
    "truths": torch.tensor([True, False]),
    "bytes_": torch.arange(256).to(torch.uint8),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "channels_last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
}
PLAIN = {"size": 12, "loss": 0.1 + 0.2, "nothing": math.nan, "large": 2**62, "yes": True, "word": "ok"}


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


FIELDS = {name: type(value) for name, value in (TENSORS | PLAIN).items()} | {"absent": Tensor | None}
Everything = type("Everything", (Question,), {"__annotations__": FIELDS, "absent": None, "__module__": __name__})


def check(sent: dict[str, Any], arrived: dict[str, Any]) -> None:
    assert sent.keys() == arrived.keys()
    for name, value in sent.items():
        if isinstance(value, Tensor):
            assert same(value, arrived[name]), name
        else:
            assert type(arrived[name]) is type(value)
            assert repr(arrived[name]) == repr(value)


def test_shapes_bits_and_values_survive_the_way_there_and_back() -> None:
    app = ClientApp()
    sent = Everything(**TENSORS, **PLAIN)
    header = wire.Header("run", 3, Place("an id", 12, 9, (17, 18, 20), (0, 4, 9)))

    @app.train("echo")
    def echo(message: Message, _: Context) -> Message:
        asked = wire.read_question(message.content, Everything)
        check(sent.values(), asked.values())
        assert wire.read_header(message.content) == header
        return Message(wire.answer(asked), reply_to=message)

    grid = InProcessGrid(app, clients=1)
    question = wire.question(header, sent, wire.Arrays())
    (reply,) = grid.send_and_receive([Message(question, grid.node_of(0), "train.echo")])
    arrived = wire.read_answer(reply.content, Everything)
    check(sent.values(), arrived.values())
    assert arrived.absent is None


def test_what_is_not_declared_is_refused() -> None:
    def read(values: dict[str, Any], **more: Any) -> Reply:
        content = wire.answer(Reply(theta=torch.ones(2), size=3))
        content["metrics"] = MetricRecord(values)
        for name, tensor in more.items():
            content.array_records["arrays"][name] = wire.Arrays()(tensor)
        return wire.read_answer(content, Reply)

    assert read({"size": 3}).size == 3
    with pytest.raises(ValueError, match="Reply has no field extra"):
        read({"size": 3}, extra=torch.ones(1))
    with pytest.raises(ValueError, match="Reply is incomplete: 1 required keyword-only argument: 'size'"):
        read({})
    with pytest.raises(ValueError, match="size is float, not int"):
        read({"size": 3.5})
    assert read({"size": 3, "train_loss": 1}).train_loss == 1
    assert read({"size": 3, "a mod's own": 1.5}).size == 3


def test_a_message_has_one_record_of_each_kind_for_flowers_mods() -> None:
    for payload in (Question(), Reply(theta=torch.ones(2), size=3)):
        asked = wire.question(wire.Header("run", 1), payload, wire.Arrays())
        assert [type(record) for record in asked.values()] == [ArrayRecord, ConfigRecord]
        assert {type(record) for record in wire.answer(payload).values()} == {ArrayRecord, MetricRecord, ConfigRecord}


def npy(descr: str, shape: str, data: bytes, longer: int = 0) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + (len(header) + longer).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    ("dtype", "shape", "data", "why"),
    [
        ("object", (1,), npy("|O", "(1,)", bytes(8)), "must be of plain numbers"),
        ("object", (1,), npy("<i8", "(1,)", bytes(8)), "must be of plain numbers"),
        ("float32", (2,), npy("<f8", "(1,)", bytes(8)), r"header that is not that of float32 of shape \(2,\)"),
        ("float32", (2,), npy("<f4", "(3,)", bytes(12)), r"header that is not that of"),
        ("float32", (2,), npy("<f4", "(2,)", bytes(6)), "6 bytes for an array"),
        ("float32", (-1,), npy("<f4", "(-1,)", bytes(6)), "of shape"),
        ("float32", (2,), npy("<f4", "(2,)", bytes(8), longer=1), "header that is not that of"),
        ("float32", (2,), npy("<f4", "(2,)", bytes(8))[:-40], "header that is not that of"),
        (">f4", (1,), npy(">f4", "(1,)", bytes(4)), "must be of plain numbers"),
        ("complex64", (1,), npy("<c8", "(1,)", bytes(8)), "must be of plain numbers"),
        ("float32", (2**50,), npy("<f4", f"({2**50},)", bytes(4)), "of shape"),
        ("float32", (2,), b"123456", "npy header"),
        ("bool", (1,), npy("|b1", "(1,)", b"7"), "neither 0 nor 1"),
    ],
)
def test_forged_arrays_are_refused(dtype: str, shape: tuple[int, ...], data: bytes, why: str) -> None:
    """Bytes that are read as pointers, or beyond their end, would end the process."""
    with pytest.raises(ValueError, match=why):
        wire.tensor(Array(dtype, shape, "numpy.ndarray", data))
    with pytest.raises(ValueError, match="of type 'torch'"):
        wire.tensor(Array(dtype, shape, "torch", data))
