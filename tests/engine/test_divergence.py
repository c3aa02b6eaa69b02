"""Training whose losses are not finite: it is said as such, and nobody is judged by numbers that are none."""

import math
from pathlib import Path

import pytest

from comity.__main__ import main
from comity.compare import load
from comity.engine import run
from comity.metrics import CALIBRATION, LOSS, OWN
from helpers import Options


@pytest.mark.parametrize("method", ["FedAvg", "Local"])
def test_clients_whose_numbers_are_not_finite_have_diverged_and_are_judged(
    tiny: Options, tmp_path: Path, method: str
) -> None:
    done = run(**(tiny | {"lr": 1e30, "method": method}), out=tmp_path / "run")
    everyone = list(range(len(done.federation)))
    assert done.result.diverged == load(tmp_path / "run").result.diverged == everyone
    if method == "FedAvg":
        assert math.isfinite(done.result.last.metrics[LOSS.key].mean)  # of the model that nobody could change
    else:
        assert done.columns[LOSS.key] == [math.inf] * len(everyone)
        assert done.columns[CALIBRATION.key] == done.columns[OWN.key]  # it is sure of nothing


def test_the_command_says_so_and_ends_with_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = ["--data", "synthetic", "--data.samples", "24", "--data.classes", "4", "--model", "mlp", "--clients", "3"]
    code = main(["run", *small, "--rounds", "1", "--lr", "1e30", "--quiet", "--out", str(tmp_path / "run")])
    told = capsys.readouterr().err
    assert code == 1
    assert told == (
        "comity: FedAvg + Mean diverged: the model or the update of 3 clients is not finite; "
        "a smaller --lr or a --clip may help\n"
    )
