"""What several tests need."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from comity import Config
from comity.__main__ import main
from comity.data import Federation
from comity.engine import Client, Links, Run, RunPlan, Server, Site, run, threads
from comity.engine._trainer import TrainerName
from comity.rules import ClientUpdates, Mean, Outcome

Options = dict[str, Any]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

TINY: Options = {
    "data": {"name": "synthetic", "samples": 24, "classes": 4, "size": 8, "noise": 0.5},
    "model": {"name": "mlp", "widths": (16,)},
    "clients": 5,
    "rounds": 3,
    "batch_size": 8,
    "lr": 0.1,
    "workers": 1,
    "reference": "none",
}
"""Options of a run that takes a tenth of a second."""
ARGUMENTS = [
    *("--data", "synthetic", "--data.samples", "24", "--data.classes", "4", "--model", "mlp", "--model.widths", "16"),
    *("--clients", "4", "--batch-size", "8"),
]
"""The same for the command line, but for the number of rounds."""


def rejected(capsys: Capture, *arguments: str, code: int = 2) -> str:
    """The one line of the error; before it a command may have said what it reads."""
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert re.fullmatch(r"(Reading .* …\n)?", out)
    assert (err.count("\n"), err.startswith("comity: ")) == (1, True)
    assert len(err) < 520
    return err


def wait_for(holds: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def federation_of(config: Config) -> Federation:
    """All clients of a configuration with their data."""
    return RunPlan(config).everyone


def site_of(config: Config, federation: Federation | None = None, trainer: TrainerName = "auto") -> Site:
    """The clients' side of a run."""
    return RunPlan(config if trainer == "auto" else config.with_(trainer=trainer), federation).site


def build(config: Config, federation: Federation | None = None, link: Links = threads) -> tuple[Site, Server]:
    """Both sides of a run."""
    return RunPlan(config, federation, link).build()


def client_of(site: Site, cid: int = 0, round: int = 1) -> Client:
    """A client at work, as the engine would make it for its first round."""
    return site.client(cid, site.model(), round=round)


def keeps(run: Run) -> dict[int, dict[str, Tensor]]:
    """What the method has each client keep."""
    return {cid: state.method for cid, state in sorted(run.server.link.states().items())}


def used(run: Run) -> list[Tensor]:
    """The models that the clients use now."""
    return list(run.server.export().values())


def bits(run: Run) -> dict[str, Tensor]:
    """Everything a run leaves behind, as tensors."""
    everything = {"theta": run.server.theta} | run.server.store
    for kind, states in (("rule", run.server.rule_states), ("step", run.server.step_states)):
        for group, state in states.items():
            everything |= {f"{kind}/{group}/{name}": tensor for name, tensor in state.items()}
    for cid, state in run.server.link.states().items():
        everything |= {f"{cid}/{name}": tensor for name, tensor in state.flat().items()}
    return everything


def assert_same(a: Run, b: Run) -> None:
    """The same bits and the same numbers."""
    one, other = bits(a), bits(b)
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name
    assert a.columns == b.columns


def interrupted(out: Path, after: int = 1, **options: Any) -> Run:
    """A run that was stopped after so many rounds."""
    answers: Iterator[bool] = iter([False] * after + [True])
    cut = run(**options, out=out, checkpoint_every=1, stop=lambda: next(answers))
    assert not cut.done
    assert cut.server.round == after
    return cut


def assert_reproducible(options: Options, out: Path, after: int = 1) -> Run:
    """The same bits with one worker, with three, and resumed after some rounds; the run with one."""
    one = run(**options)
    assert_same(one, run(**(options | {"workers": 3})))
    interrupted(out, after, **options)
    assert_same(one, run(**options, out=out, checkpoint_every=1, resume=True))
    return one


def contents(folder: Path) -> dict[Path, bytes]:
    """All files below a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def unmoving_rule() -> tuple[Mean, list[tuple[str, ...]]]:
    """A rule that leaves all it is given as it was, and a list into which it writes the layers that it was given."""
    seen: list[tuple[str, ...]] = []

    class Watched(Mean):
        def apply(self, updates: ClientUpdates) -> Outcome:
            seen.append(updates.layout.names)
            outcome = super().apply(updates)
            return replace(outcome, update=torch.zeros_like(outcome.update))

    return Watched(), seen
