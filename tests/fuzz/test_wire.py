"""Hostile clients: forged arrays, hostile replies over a grid, hostile replies to the drop-in strategies."""

import math
import os
import warnings
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
with warnings.catch_warnings():  # typer, which Flower brings along, imports what click means to remove
    warnings.filterwarnings("ignore", message="'click.utils", category=DeprecationWarning)
    import typer  # noqa: F401

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedYogi
from hypothesis import strategies as st

from comity import Config, rules
from comity.engine import run
from comity.flower import ConFREE, WithRule, client_app
from comity.flower._link import GridLink, Patience
from comity.flower._wire import tensor
from fuzz.harness import NUMBERS, damaged, fuzz
from helpers import TINY
from in_process import InProcessGrid

pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = ["float32", "float64", "float16", "int64", "bool", "object", "O", "complex64", ">f4", "V8", "U3", "M8[s]",
         "(2,)f4", "float128", "bfloat16", "uint8", "", "f4,f4", "\x00"]  # fmt: skip
DESCR = [
    "<f4",
    "<f8",
    "<f2",
    "<i8",
    "|b1",
    "|u1",
    "|O",
    "<c8",
    ">f4",
    "|V8",
    "<U3",
    "<M8[s]",
    "<f16",
    "f4",
    "=f4",
    "<f3",
]
SIDES = st.sampled_from([0, 1, 2, 3, 12, 1000, 2**31, 2**45, 2**63, 10**30]) | st.integers(-2, 40)
SHAPES = st.lists(SIDES, max_size=4).map(tuple) | st.just((1,) * 40)


@st.composite
def forged_arrays(draw: st.DrawFn) -> Array:
    """What an array says of itself, what its header says and how many bytes there are need not agree."""
    shape = draw(SHAPES)
    inside = shape if draw(st.booleans()) else draw(SHAPES)
    sides = ", ".join(map(str, inside)) + ("," if len(inside) == 1 else "")
    header = (
        f"{{'descr': '{draw(st.sampled_from(DESCR))}', 'fortran_order': {draw(st.booleans())}, 'shape': ({sides}), }}"
    )
    header = header.ljust(draw(st.sampled_from([0, 117, 118, 300]))) + "\n"
    length = len(header) if draw(st.integers(0, 4)) else draw(st.sampled_from(NUMBERS)) % 2**16
    count = math.prod(inside) * draw(st.sampled_from([1, 2, 4, 8]))
    size = count if 0 <= count < 10**5 and draw(st.integers(0, 3)) else draw(st.integers(0, 500))
    data = b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + header.encode() + draw(st.binary(max_size=8)) * size
    data = data[: 10 + len(header) + size] if draw(st.booleans()) else draw(damaged(data[:2000]))
    return Array(draw(st.sampled_from(NAMES)), shape, draw(st.sampled_from(["numpy.ndarray"] * 9 + ["torch"])), data)


@fuzz("flower, forged arrays", forged_arrays())
def test_a_forged_array_is_read_whole_or_refused(array: Array) -> None:
    try:
        read = tensor(array)
    except ValueError:
        return
    assert tuple(read.shape) == array.shape
    assert str(read.dtype) == f"torch.{array.dtype}"
    assert read.numel() * read.element_size() < len(array.data)
    assert np.array_equal(read.numpy(), array.numpy(), equal_nan=read.is_floating_point())


# Replies.

NUMBER = st.sampled_from([0, -1, 1, 2**53 + 1, 2**62, math.nan, math.inf, -math.inf, 1e30, -0.5, 2.5, 10.0])
TENSORS = st.sampled_from(
    [
        torch.zeros(0),
        torch.zeros(3),
        torch.tensor(1.0),
        torch.zeros(2, 2, dtype=torch.int64),
        torch.full((5,), math.nan),
        torch.ones(7, dtype=torch.bool),
    ]
)


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, str, Any]]:
    """What a hostile client changes in an honest reply."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        what = draw(st.sampled_from(["number", "number", "text", "drop", "tensor", "theta", "theta", "array", "extra"]))
        name = draw(
            st.sampled_from(["size", "train_loss", "loss", "own", "n_test", "n_train", "num-examples", "accuracy"])
        )
        value: Any = draw(NUMBER)
        if what == "text":
            value = draw(st.text(max_size=20) | st.lists(st.integers(0, 9), max_size=3))
        elif what == "tensor":
            value = draw(TENSORS)
        elif what == "theta":
            value = draw(
                st.sampled_from(
                    ["double", "long", "half", "complex", "nan", "inf", "huge", "largest", "short", "matrix"]
                )
            )
        elif what == "array":
            value = draw(forged_arrays())
        elif what == "extra":
            value = draw(st.sampled_from(["record", "arrays", "field", "config", "twice", "nothing"]))
        found.append((what, name, value))
    return found


def spoil(content: RecordDict, plan: list[tuple[str, str, Any]]) -> RecordDict:
    arrays = {key: dict(record) for key, record in content.array_records.items()}
    metrics = {key: dict(record) for key, record in content.metric_records.items()}
    configs: dict[str, dict[str, Any]] = {key: dict(record) for key, record in content.config_records.items()}
    first, numbers = next(iter(arrays.values()), {}), next(iter(metrics.values()))
    main = next(iter(first), "theta")
    for what, name, value in plan:
        if what == "number":
            numbers[name] = value
        elif what == "text" and isinstance(value, str):
            numbers.pop(name, None)
            configs.setdefault("config", {})[name] = value
        elif what == "text":
            numbers[name] = value
        elif what == "drop":
            numbers.pop(name, None)
        elif what == "tensor":
            first[name] = Array(value)
        elif what == "array":
            first[main] = value
        elif what == "theta" and main in first:
            main = "bn.running_var" if name in ("loss", "own") and "bn.running_var" in first else main
            first[main] = Array(SPOILT[value](first[main].numpy().astype(np.float32)))
        elif value == "arrays":
            arrays["more"] = {"x": Array(np.zeros(1))}
        elif value == "record":
            metrics["more"] = {"size": 3}
        elif value == "field":
            first["extra"] = Array(np.zeros(3))
        elif value == "config":
            configs.setdefault("config", {})["\x1b[2J" * 200] = b"\x00" * 50
        elif value == "twice":
            configs.setdefault("config", {})[next(iter(numbers), "size")] = 5
        elif value == "nothing":
            return RecordDict()
    records: dict[str, Any] = {f"a{key}" if key in metrics else key: ArrayRecord(its) for key, its in arrays.items()}
    records |= {key: MetricRecord(its) for key, its in metrics.items()}
    return RecordDict(records | {key: ConfigRecord(its) for key, its in configs.items()})


SPOILT: dict[str, Any] = {
    "double": lambda x: x.astype(np.float64),
    "long": lambda x: x.astype(np.int64),
    "half": lambda x: x.astype(np.float16),
    "complex": lambda x: x.astype(np.complex64),
    "nan": lambda x: x * np.nan,
    "inf": lambda x: x + np.inf,
    "huge": lambda x: x * np.float32(0) + np.float32(1e30),
    "largest": lambda x: x * np.float32(0) + np.float32(3e38),
    "short": lambda x: x.reshape(-1)[:-1],
    "matrix": lambda x: x.reshape(1, 1, -1),
}


class Hostile(InProcessGrid):
    """Client 1 changes its replies to one verb, or keeps away from it."""

    plan: list[tuple[str, str, Any]] | None = None
    verb = "train.fit"

    def answer(self, message: Message) -> Message:
        reply = super().answer(message)
        node = self.contexts[message.metadata.dst_node_id]
        if message.metadata.message_type != self.verb or node.node_config["partition-id"] != 1 or reply.has_error():
            return reply
        if self.plan is None:
            return Message(RecordDict(), reply_to=message)  # which is never a reply
        try:
            content = spoil(reply.content, self.plan)
        except Exception:  # Flower's own records refuse it, so nobody can send it
            content = RecordDict()
        return Message(content, reply_to=message)


CONFIG = Config(**(TINY | {"rounds": 1, "clients": 4, "method": "FedRep", "rule": "ConFREE", "val_share": 0.2}))
PATIENCE = Patience(answer=30, query=20, start=5)


def outcome(plan: list[tuple[str, str, Any]] | None, verb: str) -> Any:
    grid = Hostile(APP, 4, wire=False)
    grid.plan, grid.verb = plan, verb
    return run(CONFIG, link=lambda c, _: GridLink(grid, c.clients, c.key, PATIENCE))


APP = client_app(CONFIG)
ABSENT = {verb: outcome(None, verb) for verb in ("train.fit", "evaluate")}


@fuzz("flower, hostile replies", changes(), st.sampled_from(["train.fit", "train.fit", "evaluate"]))
def test_a_hostile_reply_is_named_and_changes_nothing(plan: list[tuple[str, str, Any]], verb: str) -> None:
    done, absent = outcome(plan, verb), ABSENT[verb]
    record = done.records[0]
    assert done.server.theta.dtype == torch.float32
    assert done.server.theta.shape == absent.server.theta.shape
    assert bool(done.server.theta.isfinite().all())
    if 1 in record.failed:
        assert record.failed.keys() == {1}
        assert record.failed[1].isprintable()
        assert len(record.failed[1]) < 400
        assert torch.equal(done.server.theta, absent.server.theta)
        assert done.columns == absent.columns
    else:  # only what an honest client might have said: numbers in their ranges
        assert all(0 <= value <= 1 for value in done.columns["L-acc"])


class Trains(ClientApp):
    """Clients of an app of somebody's own, the second of which is hostile; or absent, with ``plan`` None."""

    def __init__(self, plan: list[tuple[str, str, Any]] | None) -> None:
        super().__init__()

        @self.train()
        def train(message: Message, context: Context) -> Message:
            cid = int(context.node_config["partition-id"])
            own = np.random.default_rng(cid)
            trained = {"w": own.normal(size=(3, 4)), "bn.running_var": own.random(3)}
            arrays = ArrayRecord({name: Array(value.astype(np.float32)) for name, value in trained.items()})
            arrays["n"] = Array(np.array(cid))
            metrics = MetricRecord({"num-examples": 3 + cid, "train_loss": 1.0 + cid})
            content = RecordDict({"arrays": arrays, "metrics": metrics})
            return Message(hostile(content) if cid == 1 else content, reply_to=message)

        @self.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            cid = int(context.node_config["partition-id"])
            content = RecordDict({"metrics": MetricRecord({"num-examples": 3 + cid, "accuracy": 0.5})})
            return Message(hostile(content) if cid == 1 else content, reply_to=message)

        def hostile(content: RecordDict) -> RecordDict:
            try:
                return RecordDict() if plan is None else spoil(content, plan)
            except Exception:  # Flower's own records refuse it, so nobody can send it
                return RecordDict()


def aggregated(plan: list[tuple[str, str, Any]] | None, strategy: type[FedAvg] = FedAvg) -> Any:
    start = ArrayRecord({"w": Array(np.zeros((3, 4), np.float32)), "bn.running_var": Array(np.ones(3, np.float32))})
    start["n"] = Array(np.array(0))
    grid = InProcessGrid(Trains(plan), 4, wire=False)
    return WithRule(rules.ConFREE(), strategy()).start(grid, start, num_rounds=1)


@fuzz("flower, hostile replies to strategies", changes(), st.sampled_from([FedAvg, FedYogi, FedAdam, FedAdagrad]))
def test_a_strategy_goes_on_without_a_hostile_reply(plan: list[tuple[str, str, Any]], strategy: type[FedAvg]) -> None:
    result, absent = aggregated(plan, strategy), aggregated(None, strategy)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    assert 0 <= result.evaluate_metrics_clientapp[1]["accuracy"] <= 100
    w = result.arrays["w"]
    assert (w.dtype, tuple(w.shape), result.arrays["n"].dtype) == ("float32", (3, 4), "int64")
    assert np.isfinite(w.numpy()).all()
    if result.train_metrics_clientapp[1]["dropped"]:
        np.testing.assert_allclose(w.numpy(), absent.arrays["w"].numpy(), rtol=1e-5, atol=1e-6)


class Answers(InProcessGrid):
    """Node replies twice, for another node, or for another round."""

    how = ""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        if self.how == "twice":
            replies.append(replies[1])
        elif self.how == "for another":
            replies[1].metadata.__dict__["_src_node_id"] = replies[2].metadata.src_node_id
        elif self.how == "unasked":
            replies[1].metadata.__dict__["_src_node_id"] = 12345
        elif self.how == "another round":
            replies[1].metadata.__dict__["_group_id"] = "99"
        return replies


@pytest.mark.parametrize(
    ("how", "dropped"), [("", 0), ("twice", 1), ("for another", 1), ("unasked", 1), ("another round", 1)]
)
def test_a_strategy_checks_round_and_sender(how: str, dropped: int) -> None:
    grid = Answers(Trains([]), 4, wire=False)
    grid.how = how
    start = ArrayRecord({"w": Array(np.zeros((3, 4), np.float32)), "bn.running_var": Array(np.ones(3, np.float32))})
    start["n"] = Array(np.array(0))
    result = ConFREE().start(grid, start, num_rounds=1)
    assert result.train_metrics_clientapp[1]["dropped"] == dropped


@pytest.mark.parametrize("accuracy", [math.nan, math.inf, 2**62, -0.5, 1e6])
def test_an_accuracy_that_is_none_is_not_averaged(accuracy: float) -> None:
    result = aggregated([("number", "accuracy", accuracy)])
    assert result.evaluate_metrics_clientapp[1] == {"accuracy": 0.5}


def test_a_huge_variance_does_not_make_the_model_infinite() -> None:
    result = aggregated([("theta", "loss", "largest")], FedYogi)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    assert result.train_metrics_clientapp[1]["dropped"] == 1
