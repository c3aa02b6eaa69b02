"""Drop-in strategies: a Flower app changes its strategy and nothing else."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    Result,
    Strategy,
)

import comity.flower
from comity import ComityError, rules
from comity.flower import CALM, ConFREE, FedFV, FedMGDAPlus, TorchJD, WithRule
from comity.rules import Mean
from in_process import InProcessGrid

SIZES = [3, 5, 4, 8]
NAMES = ("body.weight", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked", "scale", "head.bias")


def model(seed: int = 0) -> dict[str, torch.Tensor]:
    """Layers, BatchNorm's statistics and its counter, which has no dimension, and a number that has none either."""
    random = torch.Generator().manual_seed(seed)
    return {
        "body.weight": torch.randn(3, 4, generator=random),
        "bn.running_mean": torch.randn(3, generator=random),
        "bn.running_var": torch.rand(3, generator=random) + 0.5,
        "bn.num_batches_tracked": torch.tensor(8 * seed),
        "scale": torch.randn((), generator=random),
        "head.bias": torch.randn(4, generator=random).double(),
    }


def reply_of(cid: int, received: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A client that moves everything towards a model of its own."""
    own = model(cid + 1)
    trained = {
        name: value + 0.5 * (own[name] - value) if value.is_floating_point() else own[name]
        for name, value in received.items()
    }
    return trained, {"num-examples": SIZES[cid], "train_loss": 1.0 + cid, "accuracy": 0.1 * cid}


@dataclass
class Reply:
    cid: int
    arrays: dict[str, torch.Tensor]
    metrics: dict[str, Any]


class App(ClientApp):
    """Clients as above; ``spoil`` changes what one of them would reply."""

    def __init__(self, spoil: Any = None) -> None:
        super().__init__()

        @self.train()
        def train(message: Message, context: Context) -> Message:
            cid = int(context.node_config["partition-id"])
            reply = Reply(cid, *reply_of(cid, message.content["arrays"].to_torch_state_dict()))
            if spoil is not None:
                spoil(reply)
            records = {"arrays": ArrayRecord(reply.arrays), "metrics": MetricRecord(reply.metrics)}
            return Message(RecordDict(records), reply_to=message)

        @self.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            cid = int(context.node_config["partition-id"])
            metrics = MetricRecord({"num-examples": SIZES[cid], "accuracy": 0.5})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)


def start(strategy: Strategy, spoil: Any = None, rounds: int = 2, clients: int = 4) -> tuple[Result, InProcessGrid]:
    grid = InProcessGrid(App(spoil), clients)
    return strategy.start(grid, ArrayRecord(model()), num_rounds=rounds), grid


def arrays_of(result: Result) -> dict[str, torch.Tensor]:
    return dict(result.arrays.to_torch_state_dict())


def test_the_mean_is_what_fedavg_makes_and_shapes_and_types_stay() -> None:
    plain, ours = (arrays_of(start(strategy)[0]) for strategy in (FedAvg(), WithRule(Mean())))
    assert tuple(ours) == NAMES
    for name, value in model().items():
        assert ours[name].shape == value.shape
        assert ours[name].dtype == value.dtype
        near = 1e-6 if value.is_floating_point() else 0.5  # counters stay whole
        torch.testing.assert_close(ours[name].double(), plain[name].double(), rtol=0, atol=near)
    assert ours["bn.num_batches_tracked"] == round(sum(n * 8 * (i + 1) for i, n in enumerate(SIZES)) / sum(SIZES))


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        (ConFREE(0.3), rules.ConFREE(0.3)),
        (ConFREE(0.3, scope="layer"), rules.ConFREE(0.3, scope="layer")),
        (CALM(scale="layer"), rules.CALM(scale="layer")),
        (FedMGDAPlus(0.2), rules.FedMGDAPlus(0.2)),
        (FedFV(0.2), rules.FedFV(0.2)),
    ],
    ids=repr,
)
def test_the_update_is_the_rules_own(strategy: WithRule, rule: rules.Rule) -> None:
    result, grid = start(strategy, rounds=1)
    before, layers = model(), [name for name in NAMES if "bn" not in name]
    nodes = sorted(grid.contexts)  # the order in which the rule sees them
    cids = [int(grid.contexts[node].node_config["partition-id"]) for node in nodes]
    updates = [
        {name: reply_of(cid, before)[0][name].double() - before[name].double() for name in layers} for cid in cids
    ]
    combined = rule(updates, sizes=[SIZES[c] for c in cids], losses=[1.0 + c for c in cids])
    after = arrays_of(result)
    for name in layers:
        torch.testing.assert_close(after[name].double(), before[name].double() + combined[name], rtol=1e-5, atol=1e-6)
    assert repr(strategy.rule) == repr(rule)

    told = result.train_metrics_clientapp[1]
    assert told["train_loss"] == pytest.approx(sum(n * (1.0 + c) for c, n in enumerate(SIZES)) / sum(SIZES))
    assert told["coefficient-nodes"] == nodes
    assert 0 <= told["conflict-rate"] <= 1
    assert len(told["conflict-rate-by-layer"]) == len(layers)
    assert told["dropped"] == 0
    assert told["residual"] <= 1e-8
    if strategy.rule.scope == "layer":
        assert [key for key in told if key.startswith("coefficients")] == [f"coefficients/{name}" for name in layers]
    else:
        assert len(told["coefficients"]) == 4
    assert result.evaluate_metrics_clientapp[1] == {"accuracy": 0.5}


def test_the_order_in_which_replies_arrive_does_not_matter() -> None:
    grid, strategy = InProcessGrid(App(), 4), ConFREE()
    messages = strategy.configure_train(1, ArrayRecord(model()), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    one, _ = strategy.aggregate_train(1, replies)
    other, _ = strategy.aggregate_train(1, reversed(replies))
    assert one == other


def replaced(name: str, change: Callable[[torch.Tensor], Any]) -> Callable[[Reply], None]:
    def spoil(reply: Reply) -> None:
        reply.arrays[name] = change(reply.arrays[name])

    return spoil


def weighted(size: float) -> Callable[[Reply], None]:
    return lambda reply: reply.metrics.update({"num-examples": size})


ENDLESS = replaced("body.weight", lambda weight: weight * 1e30)


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (
            replaced("head.bias", lambda bias: bias * math.nan),
            replaced("bn.running_var", lambda var: var + math.inf),
            ["array 'head.bias' is not finite", "array 'bn.running_var' is not finite"],
        ),
        (
            lambda reply: reply.arrays.pop("scale"),
            replaced("body.weight", lambda weight: weight.T),
            ["it sent nothing as array 'scale', most others ()", r"has shape (4, 3), not (3, 4)"],
        ),
        (weighted(0.0), weighted(math.nan), ["its num-examples is 0", "its num-examples is nan"]),
        (ENDLESS, ENDLESS, ["array 'body.weight' has a length beyond float32"]),
    ],
    ids=["not finite", "misfit", "weightless", "endless"],
)
def test_a_reply_that_cannot_be_used_is_dropped_named_and_counted(
    first: Any, second: Any, why: list[str], log: pytest.LogCaptureFixture
) -> None:
    def spoil(reply: Reply) -> None:
        reply.metrics["num-examples"] = float(SIZES[reply.cid])
        {1: first, 2: second}.get(reply.cid, lambda _: None)(reply)

    result, grid = start(ConFREE(), spoil)
    good = sorted(grid.node_of(cid) for cid in (0, 3))
    for round in (1, 2):
        told = result.train_metrics_clientapp[round]
        assert told["dropped"] == 2
        assert told["coefficient-nodes"] == good
        expected = (SIZES[0] * 1.0 + SIZES[3] * 4.0) / (SIZES[0] + SIZES[3])
        assert told["train_loss"] == pytest.approx(expected)
    assert all(torch.isfinite(value).all() for value in arrays_of(result).values())
    for words in why:
        assert words in log.text
    for cid in (1, 2):
        assert f"the reply of node {grid.node_of(cid)} is dropped" in log.text


def test_failing_clients_are_left_to_flower(log: pytest.LogCaptureFixture) -> None:
    def fails(reply: Reply) -> None:
        if reply.cid == 0:
            raise RuntimeError("out of memory")

    result, _ = start(ConFREE(), fails)
    assert "aggregate_train: Received 3 results and 1 failures" in log.text
    assert "out of memory" in log.text
    assert len(result.train_metrics_clientapp[2]["coefficients"]) == 3


def test_a_round_without_any_good_reply_changes_nothing() -> None:
    result, _ = start(ConFREE(), replaced("scale", lambda scale: scale * math.nan), rounds=1)
    assert len(result.arrays) == 0  # as FedAvg returns when no client answers
    assert result.train_metrics_clientapp[1] == {"dropped": 4}


def test_clients_that_send_a_part_of_the_model_alone() -> None:
    def body(reply: Reply) -> None:
        for name in list(reply.arrays):
            if name != "body.weight":
                del reply.arrays[name]

    plain, ours = (arrays_of(start(strategy, body)[0]) for strategy in (FedAvg(), WithRule(Mean())))
    assert list(ours) == list(plain) == ["body.weight"]
    torch.testing.assert_close(ours["body.weight"], plain["body.weight"].float())


def test_everything_of_the_wrapped_strategy_stays() -> None:
    def aggregate(contents: list[RecordDict], key: str) -> MetricRecord:
        assert key == "accuracy"
        return MetricRecord({"best": max(content["metrics"]["accuracy"] for content in contents), "n": len(contents)})

    def positive(reply: Reply) -> None:
        reply.metrics["accuracy"] += 0.1

    options = {"fraction_train": 0.5, "fraction_evaluate": 0.75, "min_train_nodes": 2, "weighted_by_key": "accuracy"}
    options |= {"train_metrics_aggr_fn": aggregate, "evaluate_metrics_aggr_fn": aggregate}
    for strategy in (ConFREE(**options), ConFREE(strategy=FedAvg(**options))):
        result, _ = start(strategy, positive)
        for record in result.train_metrics_clientapp.values():
            assert len(record["coefficients"]) == record["n"] == 2
            assert 0.1 <= record["best"] <= 0.4
        assert result.evaluate_metrics_clientapp[2] == {"best": 0.5, "n": 3}


def test_a_strategys_own_loop_is_kept_and_the_strategy_is_not_changed(log: pytest.LogCaptureFixture) -> None:
    class Mine(FedAvg):
        def start(self, *args: Any, **kwargs: Any) -> Result:
            result = super().start(*args, **kwargs)
            self.rounds_done = kwargs["num_rounds"]
            if fails:
                raise RuntimeError("disk full")
            result.evaluate_metrics_serverapp[99] = MetricRecord({"mine": 1})
            return result

    inner, fails = Mine(), False
    before = set(vars(inner))
    result, _ = start(WithRule(rules.ConFREE(), inner))
    assert 99 in result.evaluate_metrics_serverapp
    assert "coefficients" in result.train_metrics_clientapp[1]
    assert "Rule: ConFREE()" in log.text
    fails = True
    with pytest.raises(RuntimeError, match="disk full"):
        start(WithRule(rules.ConFREE(), inner))
    assert set(vars(inner)) - before == {"rounds_done"}  # which the loop itself set
    assert inner.rounds_done == 2


def test_steps_that_were_replaced_on_an_instance_are_used_within_ours() -> None:
    seen: list[int] = []
    inner = FedAvg()

    def aggregate(server_round: int, replies: Any) -> Any:
        seen.append(server_round)
        return FedAvg.aggregate_train(inner, server_round, replies)

    inner.aggregate_train = aggregate  # type: ignore[method-assign]
    result, _ = start(WithRule(rules.ConFREE(), inner))
    assert seen == [1, 2]
    assert "coefficients" in result.train_metrics_clientapp[1]
    assert inner.aggregate_train is aggregate


def test_every_rule_has_a_strategy_with_its_options() -> None:
    for rule in rules.RULES.values():
        strategy = getattr(comity.flower, rule.__name__)
        assert issubclass(strategy, WithRule)
        shown, own = inspect.signature(strategy).parameters, inspect.signature(rule).parameters
        named = {name: p for name, p in own.items() if p.kind is not p.VAR_KEYWORD}
        assert named.items() <= shown.items()
        assert {"strategy", "loss_key", "average", "options"} <= shown.keys()
        assert rule.__doc__.partition("\n")[0] in strategy.__doc__
        assert repr(strategy(fraction_train=0.5).rule) == repr(rule())
    assert repr(TorchJD("CAGrad", c=0.5, min_train_nodes=3).rule) == "TorchJD(weighting='CAGrad', c=0.5)"
    with pytest.raises(ComityError, match=r"rule\.c must be at least 0 and below 1, got 2"):
        ConFREE(c=2)


@pytest.mark.parametrize("server", [FedAdam, lambda: FedAvgM(server_momentum=0.9), FedMedian])
def test_a_servers_optimiser_takes_the_rules_update(server: Any) -> None:
    """With one client the rule's update is the client's own, whatever the rule: then both must step alike."""
    options = {"min_train_nodes": 1, "min_available_nodes": 1, "min_evaluate_nodes": 1}
    inner, wrapped = server(), server()
    for strategy in (inner, wrapped):
        vars(strategy).update(options)
    plain, ours = (arrays_of(start(strategy, clients=1)[0]) for strategy in (inner, WithRule(rules.ConFREE(), wrapped)))
    for name in ("body.weight", "scale", "head.bias"):
        torch.testing.assert_close(ours[name].double(), plain[name].double(), rtol=1e-5, atol=1e-6)
        assert ours[name].dtype == model()[name].dtype


def test_it_may_be_wrapped_itself() -> None:
    strategy = DifferentialPrivacyServerSideFixedClipping(ConFREE(), 0.0, clipping_norm=1e6, num_sampled_clients=4)
    grid = InProcessGrid(App(lambda reply: reply.arrays.pop("bn.num_batches_tracked", None)), 4)
    first = model()
    del first["bn.num_batches_tracked"]
    result = strategy.start(grid, ArrayRecord(first), num_rounds=1)
    assert len(result.train_metrics_clientapp[1]["coefficients"]) == 4


def test_a_rule_that_remembers_does_so_from_round_to_round() -> None:
    strategy = FedFV(tau=1, fraction_train=0.5)
    result, _ = start(strategy, rounds=6)
    assert any(len(told["coefficient-nodes"]) > 2 for told in result.train_metrics_clientapp.values())


def test_losses_come_from_the_metric_that_is_named() -> None:
    def renamed(reply: Reply) -> None:
        reply.metrics["loss-before"] = reply.metrics.pop("train_loss")

    with pytest.raises(ComityError, match=r"FedFV\(\) needs every client's loss; node \d+ sends no number as"):
        start(FedFV(), renamed)
    start(FedFV(loss_key="loss-before"), renamed)


def test_which_arrays_are_averaged_can_be_said() -> None:
    averaged = arrays_of(start(ConFREE(average=["*"]), rounds=1)[0])
    plain = arrays_of(start(FedAvg(), rounds=1)[0])
    for name, value in averaged.items():
        torch.testing.assert_close(
            value.double(), plain[name].double(), rtol=1e-6, atol=1e-6 if "num" not in name else 1
        )
    through = start(ConFREE(average=[]), rounds=1)[0].train_metrics_clientapp[1]
    assert len(through["conflict-rate-by-layer"]) == 5


def test_half_precision_stays_half() -> None:
    grid, strategy = InProcessGrid(App(), 1), WithRule(Mean(), min_train_nodes=1, min_available_nodes=1)
    sent = ArrayRecord({"w": Array(np.ones(3, dtype=np.float16))})
    (asked,) = strategy.configure_train(1, sent, ConfigRecord(), grid)
    reply = Message(RecordDict({"arrays": sent, "metrics": MetricRecord({"num-examples": 1})}), reply_to=asked)
    failed = Message(Error(0, "gone"), reply_to=asked)
    arrays, _ = strategy.aggregate_train(1, [reply, failed])
    assert arrays is not None
    assert arrays["w"].dtype == "float16"


def test_options_for_a_strategy_that_is_given_are_refused() -> None:
    with pytest.raises(ComityError, match="fraction_train are options of the strategy; give them to it"):
        ConFREE(strategy=FedAvg(), fraction_train=0.5)
    with pytest.raises(TypeError, match="fraction_trian"):
        ConFREE(fraction_trian=0.5)


def test_updates_longer_than_the_median_are_scaled_down_to_it() -> None:
    def shout(reply: Reply) -> None:
        reply.arrays["body.weight"] *= 1000 if reply.cid == 2 else 1

    def moved(strategy: Strategy) -> float:
        return float((arrays_of(start(strategy, shout, rounds=1)[0])["body.weight"] - model()["body.weight"]).norm())

    assert moved(comity.flower.Mean(clip="median")) < 0.02 * moved(comity.flower.Mean())
    with pytest.raises(ComityError, match=r"clip must be none \| median, got 'mean'"):
        ConFREE(clip="mean")


def test_evaluations_that_cannot_be_used_are_left_out(log: pytest.LogCaptureFixture) -> None:
    class Lying(App):
        def __call__(self, message: Message, context: Context) -> Message:
            reply = super().__call__(message, context)
            if message.metadata.message_type == "evaluate" and context.node_config["partition-id"] == 1:
                reply.content["metrics"] = MetricRecord({"num-examples": 0, "accuracy": [1e30]})
            return reply

    result = ConFREE().start(InProcessGrid(Lying(), 4), ArrayRecord(model()), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1] == {"accuracy": 0.5}
    assert "aggregate_evaluate: the reply of node" in log.text


def test_a_rule_that_sees_sketches_makes_an_exact_step_and_says_its_error() -> None:
    exact, turned = (arrays_of(start(ConFREE(**options))[0]) for options in ({}, {"sketch": 64}))
    for name in NAMES:  # no array has more than 64 numbers, so all are only turned
        torch.testing.assert_close(exact[name], turned[name], rtol=1e-5, atol=1e-6)
    sketched = CALM(sketch=4)
    result, _ = start(sketched)
    assert 0 < result.train_metrics_clientapp[1]["conflict-rate-error"] < 1
    assert sketched.outcome is not None
    rows = sketched.outcome.updates
    torch.testing.assert_close(sketched.outcome.update, rows.combine(sketched.outcome.coefficients))
    with pytest.raises(ComityError, match="FedFV remembers updates"):
        FedFV(sketch=64)
    with pytest.raises(ComityError, match="sketch must be"):
        WithRule(Mean(), sketch=-1)
