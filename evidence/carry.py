"""Carry the finished runs of a long study from one machine to another.

python evidence/carry.py pack STUDY FOLDER     write FOLDER/RUN.tar.xz for each finished run, to be committed
python evidence/carry.py unpack FOLDER STUDY   put them back, for `comity reproduce … --out STUDY` to take as done

An archive has a run's configuration, result, scores per client and test, and the rounds with an evaluation. It leaves
out checkpoints, cosines, the rule's weights and all other rounds.
"""

import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

from comity.results import schema

KEPT = (schema.INFO, schema.CONFIG, schema.PARTITION, schema.RESULT, schema.CLIENTS, schema.SAMPLES)


def pack(study: Path, folder: Path) -> list[str]:
    """The names of the runs that were added."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(study / schema.STUDY, folder / schema.STUDY)
    added = []
    for run in sorted((study / schema.RUNS).iterdir()):
        archive = folder / f"{run.name}.tar.xz"
        if archive.exists() or not (run / schema.RESULT).exists():
            continue
        files = {name: (run / name).read_bytes() for name in KEPT if (run / name).exists()}
        rounds = (run / schema.ROUNDS).read_bytes().splitlines(keepends=True)
        files[schema.ROUNDS] = b"".join(line for line in rounds if json.loads(line)["metrics"])
        with tarfile.open(archive, "w:xz") as tar:
            for name, content in files.items():
                about = tarfile.TarInfo(f"{run.name}/{name}")  # of no date and no owner: the same bytes everywhere
                about.size = len(content)
                tar.addfile(about, io.BytesIO(content))
        added.append(run.name)
    return added


def unpack(folder: Path, study: Path) -> list[str]:
    """The names of the runs that were put back; those that are there already stay."""
    (study / schema.RUNS).mkdir(parents=True, exist_ok=True)
    if not (study / schema.STUDY).exists():
        shutil.copyfile(folder / schema.STUDY, study / schema.STUDY)
    added = []
    for archive in sorted(folder.glob("*.tar.xz")):
        name = archive.name.removesuffix(".tar.xz")
        if not (study / schema.RUNS / name / schema.RESULT).exists():
            shutil.rmtree(study / schema.RUNS / name, ignore_errors=True)  # one that was interrupted
            with tarfile.open(archive) as tar:
                tar.extractall(study / schema.RUNS, filter="data")
            added.append(name)
    return added


if __name__ == "__main__":
    moved = {"pack": pack, "unpack": unpack}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
    print(f"{len(moved)} runs: {', '.join(moved) or 'nothing to do'}")
