"""Finished runs are packed, committed, put back elsewhere, and not done again."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from study_parts import SMALL

from comity.compare import LoadedStudy
from comity.results import schema
from comity.studies import study


@pytest.fixture
def carry() -> ModuleType:
    spec = spec_from_file_location("carry", Path(__file__).parents[2] / "evidence" / "carry.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_runs_that_were_carried_over_are_not_done_again(carry: ModuleType, tmp_path: Path) -> None:
    here, archive, there = (tmp_path / name for name in ("here", "archive", "there"))
    entries = SMALL | {"method": ["FedAvg", "Local"], "reference": "none", "control": "none", "eval_every": 2}
    done = study(entries, rounds=4, seeds=1, out=here)
    assert len(carry.pack(here, archive)) == len(done.runs)
    assert carry.pack(here, archive) == []
    assert len(carry.unpack(archive, there)) == len(done.runs)

    # evaluated rounds alone were kept, so a run that was done again would have more
    again = study(entries, rounds=4, seeds=2, out=there)
    kept = {run.path.name: [record.round for record in run.records] for run in again.runs}
    assert {name: kept[name] for name in kept if name.endswith("s0")} == {run.path.name: [2, 4] for run in done.runs}
    assert all(rounds == [1, 2, 3, 4] for name, rounds in kept.items() if name.endswith("s1"))
    table = {(cell.label, run.seed): run.metric("L-acc") for cell in LoadedStudy(there).cells for run in cell.finished}
    assert all(table[cell.label, 0] == cell.finished[0].metric("L-acc") for cell in done.cells)


def test_a_run_that_is_not_finished_is_left_out(carry: ModuleType, tmp_path: Path) -> None:
    study(SMALL | {"reference": "none", "control": "none"}, rounds=2, seeds=1, out=tmp_path / "here")
    (run,) = (tmp_path / "here" / schema.RUNS).iterdir()
    (run / schema.RESULT).unlink()
    assert carry.pack(tmp_path / "here", tmp_path / "archive") == []
