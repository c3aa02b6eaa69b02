"""Training whose losses are not finite: it is said as such, and nobody is judged by numbers that are none."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from comity.__main__ import main
from comity.compare import load
from comity.data import Split
from comity.engine import Client, run
from comity.engine._trainer import Autograd
from comity.results import CALIBRATION, LOSS, OWN

TOO_LARGE = 1e30


def test_clients_whose_updates_are_refused_have_diverged(tiny: dict[str, Any]) -> None:
    done = run(**(tiny | {"lr": TOO_LARGE, "method": "FedAvg"}))
    assert done.result.diverged == list(range(len(done.federation)))
    assert math.isfinite(done.result.last.metrics[LOSS].mean)  # of the model that nobody could change


def test_clients_whose_own_models_are_no_numbers_have_diverged_and_are_judged(
    tiny: dict[str, Any], tmp_path: Any
) -> None:
    done = run(**(tiny | {"lr": TOO_LARGE, "method": "Local"}), out=tmp_path / "run")
    assert done.result.diverged == list(range(len(done.federation)))
    assert done.columns[LOSS] == [math.inf] * len(done.federation)
    assert done.columns[CALIBRATION] == done.columns[OWN]  # it is sure of nothing
    assert load(tmp_path / "run").result.diverged == done.result.diverged


def test_a_model_that_diverged_gives_every_class_the_probability_0() -> None:
    net, split = torch.nn.Linear(2, 3), Split(torch.eye(2), torch.zeros(2, dtype=torch.long))
    client: Any = SimpleNamespace(model=SimpleNamespace(net=net), trainer=Autograd())
    assert torch.equal(Client.predict(client, split), torch.log_softmax(net(split.x), 1))
    torch.nn.init.constant_(net.weight, math.nan)
    assert torch.equal(Client.predict(client, split), torch.full((2, 3), -math.inf))


def test_the_command_says_so_and_ends_with_1(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    small = ["--data", "synthetic", "--data.samples", "24", "--data.classes", "4", "--model", "mlp", "--clients", "3"]
    code = main(["run", *small, "--rounds", "1", "--lr", "1e30", "--quiet", "--out", str(tmp_path / "run")])
    told = capsys.readouterr().err
    assert code == 1
    assert told == (
        "comity: FedAvg + Mean diverged: the model or the update of 3 clients is not finite; "
        "a smaller --lr or a --clip may help\n"
    )
