"""A run says which clients' accuracy fell far between evaluations."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from comity.commands._progress import Progress
from comity.compare import LoadedStudy
from comity.engine import run
from comity.engine._result import accuracy_drops
from comity.methods import Client, Local, Message
from comity.results import LoadedRun
from helpers import Options, interrupted


class Jumps(Local):
    """Client 1 forgets everything in round 2."""

    def personal(self, client: Client, received: Message) -> Tensor:
        model = super().personal(client, received)
        return torch.zeros_like(model) if client.id == 1 and client.round == 2 else model


def test_a_fall_counts_where_it_is_large_and_no_chance() -> None:
    columns = {"client": [0, 1, 2, 3, 4], "n_test": [100, 100, 100, 10, 100], "L-acc": [0.5, 0.75, 0.9, 0.5, 0.1]}
    before = {0: 0.9, 1: 0.9, 2: 0.5, 3: 0.9}  # client 3 lost four tests, client 4 was never seen
    assert accuracy_drops(before, columns) == {0: pytest.approx(0.4)}


def test_a_run_names_the_clients_whose_accuracy_fell(tiny: Options, tmp_path: Path) -> None:
    options = tiny | {"data": tiny["data"] | {"samples": 80}}
    stable = run(**options, method="Local")
    assert stable.result.unstable == []
    text = io.StringIO()
    done = run(**options, method=Jumps, out=tmp_path / "x", callbacks=[Progress(Console(file=text, width=200))])
    assert done.result.unstable == [1]
    assert [sorted(record.fell) for record in done.records] == [[], [1], []]
    assert "Unstable training: the accuracy of a client (1) fell by more than 20 points" in text.getvalue()
    assert LoadedRun(tmp_path / "x").records[1].fell == done.records[1].fell
    (remark,) = [note for note in LoadedStudy(tmp_path / "x").table().remarks if "Unstable training" in note]
    assert "Jumps" in remark


def test_a_fall_across_a_resume_is_seen_too(tiny: Options, tmp_path: Path) -> None:
    options = tiny | {"data": tiny["data"] | {"samples": 80}, "method": Jumps}
    interrupted(tmp_path / "cut", **options)
    resumed = run(**options, out=tmp_path / "cut", resume=True)
    assert [record.fell for record in resumed.records] == [record.fell for record in run(**options).records]
    assert resumed.result.unstable == [1]
