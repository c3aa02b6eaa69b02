"""benchmarks/peers.py without any peer installed: the same net on both sides, the same work asserted, the table."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import peer_worker
import peers


class Fake:
    """A peer that answers what it is told."""

    def __init__(self, steps: int, fall: float) -> None:
        self.steps, self.losses = steps, [2.0, 2.0 - fall]

    def ask(self, question: str) -> dict[str, Any]:
        if question == "loss":
            return {"loss": self.losses.pop(0)}
        return {"clock": 0.6, "processor": 0.8, "steps": self.steps}


class Ours(Fake):
    def taken(self) -> tuple[float, float]:
        return 0.2, 0.4

    def loss(self) -> float:
        return self.losses.pop(0)


def test_a_row_has_medians_ranges_and_ratios_of_neighbouring_rounds() -> None:
    here, there = peers.measure(Ours(200, 0.1), Fake(200, 0.11), 2, 200)
    cells = [cell.strip() for cell in peers.row("FedAvg: pfl 0.6.0", "mlp", here, there).strip("|").split("|")]
    assert len(cells) == 2 + len(peers.NUMBERS)
    assert cells[2:5] == ["0.600 (0.600–0.600)", "0.200 (0.200–0.200)", "3.0 (3.0–3.0)"]
    assert cells[7:] == ["2.0 (2.0–2.0)", "2.000 → 1.890, 2.000 → 1.900"]
    assert peers.ratio([4.0, 2.0, 9.0], [2.0, 2.0, 3.0]) == "2.0 (1.0–3.0)"


@pytest.mark.parametrize(("steps", "fall", "sentence"), [(400, 0.1, "400 steps"), (200, 0.2, "does not fall as")])
def test_a_peer_that_does_other_work_is_an_error(steps: int, fall: float, sentence: str) -> None:
    with pytest.raises(SystemExit, match=sentence):
        peers.measure(Ours(200, 0.1), Fake(steps, fall), 1, 200)


@pytest.mark.parametrize("model", peers.SHAPES)
def test_the_worker_has_the_same_net_and_samples(model: str, tmp_path: Path) -> None:
    data = peers.learnable(model)
    ours = peers.Ours(data, model, "FedAvg", evaluated=False)
    peers.write_work(tmp_path, data, model, ours.weights())
    worker = peer_worker.Torch(peer_worker.Work(tmp_path))
    x = data.clients[1].train.x
    assert torch.equal(worker.x[1], x)
    torch.testing.assert_close(worker.net(x), ours.net(x))
    assert worker.loss() == pytest.approx(ours.loss(), rel=1e-5)


def test_every_peer_has_requirements_and_an_environment_of_its_own() -> None:
    assert peers.REQUIREMENTS.keys() == peer_worker.PEERS.keys()
    folders = {peers.parse([peer]).venv for peer in peers.REQUIREMENTS}
    assert len(folders) == len(peers.REQUIREMENTS)
    with pytest.raises(SystemExit):
        peers.parse(["fedml"])
