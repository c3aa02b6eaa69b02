"""What an extension of one's own can change and add."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from comity import ComityError
from comity.data import ClientData, Federation, Split
from comity.engine import Aggregation, Client, Extension, Judgement, MakeUpdates, Run, RunPlan, Server, Site, run
from comity.methods import Combined, Payload, Reply
from comity.metrics import Metric
from comity.results import Result, RunFolder
from helpers import Options

SURE = Metric(
    key="confidence",
    label="confidence",
    meaning="Mean probability of the predicted class",
    compute=lambda judged: float(judged.predicted.exp().amax(1).mean()),
    low=0,
    high=1,
)


class Confidence(Extension):
    metrics = (SURE,)


def test_a_metric_of_an_extension_is_measured_and_written(tiny: Options, tmp_path: Path) -> None:
    done = run(**tiny, extension=Confidence, out=tmp_path / "x")
    assert all(0.25 <= value <= 1 for value in done.columns["confidence"])
    folder = RunFolder(tmp_path / "x")
    assert folder.result().clients["confidence"] == done.columns["confidence"]
    assert folder.rounds()[-1].metrics["confidence"].mean == pytest.approx(sum(done.columns["confidence"]) / 5)
    assert [described.key for described in folder.info().metrics] == ["confidence"]
    assert [row["confidence"] for row in folder.client_rows()][-5:] == done.columns["confidence"]


class Impossible(Extension):
    metrics = (replace(SURE, compute=lambda _: 2.0),)


def test_a_value_outside_the_range_of_a_metric_is_rejected(tiny: Options) -> None:
    with pytest.raises(ComityError, match=r"sent confidence that is 2; it must be from 0 to 1"):
        run(**tiny, extension=Impossible)


class Everything(Extension):
    """Uses every hook of a round and notes its call."""

    factor: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.called: list[str] = []

    def participants(self, everyone: Federation) -> Federation:
        return everyone.first(4)

    def attach(self, plan: RunPlan, site: Site) -> None:
        self.excluded = frozenset({3})  # type: ignore[misc]

    def client_data(self, data: ClientData, round: int) -> ClientData:
        return replace(data, train=Split(data.train.x[:8], data.train.y[:8]))

    def before_fit(self, site: Site, client: Client, received: Payload) -> None:
        self.called.append("before_fit")

    def after_fit(self, site: Site, client: Client, received: Payload, reply: Any) -> Any:
        self.called.append("after_fit")
        return replace(reply, size=len(client.data.train) + client.id)

    def replies(self, server: Server, replies: dict[int, Reply], sent: Mapping[int, Payload]) -> dict[int, Reply]:
        self.called.append("replies")
        assert sent.keys() == replies.keys() == {0, 1, 2, 3}
        return {cid: reply for cid, reply in replies.items() if cid != 0}

    def updates(self, server: Server, aggregation: Aggregation, make: MakeUpdates) -> MakeUpdates:
        self.called.append("updates")
        assert aggregation.sizes.tolist() == [9, 10, 11]
        return make

    def combine(self, server: Server, replies: Mapping[int, Any], is_whole: bool) -> Combined | None:
        assert is_whole
        self.called.append("combine")
        return None

    def after_round(self, run: Run) -> None:
        self.called.append("after_round")

    def judge(self, judgement: Judgement) -> None:
        judgement.predicted = torch.full_like(judgement.predicted, -1.0)

    def after_training(self, run: Run, result: Result) -> Result:
        return msgspec.structs.replace(result, failures=7)


def test_hooks_are_called_in_order_and_change_the_run(tiny: Options) -> None:
    done = run(
        **(tiny | {"rounds": 1, "reference": "auto"}), extension={"name": f"{__name__}.Everything", "factor": 0.25}
    )
    (extension,) = (each for each in done.site.extensions if isinstance(each, Everything))
    assert extension.factor == 0.25
    fits = ["before_fit", "after_fit"] * 4
    assert extension.called == [*fits, "replies", "combine", "updates", "after_round"]
    assert len(done.plan.everyone) == 5
    assert done.columns["client"] == [0, 1, 2]
    assert done.columns["n_train"] == [8] * 3
    assert done.columns["loss"] == [1.0] * 3
    assert done.weights[0].ids == [1, 2, 3]
    assert (done.result.failures, done.result.malicious) == (7, [3])
    with pytest.raises(ComityError, match=r"extension\.factor must be a number, got 'much'"):
        run(**tiny, extension={"name": f"{__name__}.Everything", "factor": "much"})
