"""Every console command of README and docs is run, on small data and for one round."""

import glob
import json
import os
import re
import shlex
import shutil
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import comity
from comity.__main__ import main
from comity.data.sources.embedded import HEART
from test_docs import BLOCK, DOCS, PAGES, TUTORIALS

NOT_RUN = {
    "--on ray": "make test-ray has a cluster",
    "--data cifar10": "needs the data set",
    "--data flowers102": "needs the data set",
    "--data fashion-mnist": "needs the data set",
    "--data mnist": "needs the data set",
    "torchvision": "is not a dependency",
    "--track wandb": "needs an account",
    "--track mlflow": "needs a server",
    "bench --scale night": "hours",
    "comity supernode": "tests/flower/test_processes.py",
    "runs/hearts": "tests/flower/test_sites.py has such a federation",
    "~/comity": "tests/flower/test_sites.py has such a federation",
}
"""What a command contains that is not run here, and why."""
NEEDS_DATA = ("--scale night", "--scale paper")
"""What a command contains that is run only if COMITY_DATA names a folder with these data sets."""
MODULES = {
    "mymodule.py": "from comity.methods import FedRep\nfrom comity.rules import CALM\n\n\nclass Inverse(CALM):\n"
    '    """A rule of one\'s own.\n\n    Options:\n        power: a number\n    """\n\n    power: float = 1\n',
    "mymethod.py": "from comity.methods import FedAvg\n\n\nclass Gentle(FedAvg):\n    strength: float = 1\n",
    "mysplits.py": "from dataclasses import dataclass\nfrom comity.data import IID\n\n\n"
    "@dataclass(frozen=True, kw_only=True)\nclass Parity(IID):\n    divisor: int = 2\n",
}
FASTER = {"rounds": "1", "seeds": "1", "newcomers": "5"}


def commands(page: str) -> list[str]:
    """The commands on a page, without comments and those of its own tutorial, which tests/test_docs.py runs."""
    text = (DOCS.parent / page).read_text().replace("\\\n", " ")
    fenced = [line for language, block in BLOCK.findall(text) if language != "python" for line in block.splitlines()]
    found = [line.removeprefix("$ ").partition(" #")[0] for line in fenced]
    return [line for line in found if line.startswith("comity ") and not line.startswith("comity [")]


def prepare(folder: Path, target: str) -> None:
    """Files that pages take for granted; ``target`` is the column that patients.csv predicts."""
    (folder / "patients.csv").write_text(HEART.read_text().replace("disease", target, 1))
    header, *rows = HEART.read_text().splitlines(keepends=True)
    (folder / "new.csv").write_text("patient," + header + "".join(f"A{place},{row}" for place, row in enumerate(rows)))
    (folder / "labelled.csv").write_text(header + "".join(rows[:50]))
    for site in ("cleveland", "hungary", "long-beach", "switzerland", "pooled"):
        mine = [row for row in rows if site in ("pooled", row.partition(",")[0].lower().replace(" ", "-"))]
        for path in (folder / site / "patients.csv", folder / f"{site.replace('-', '_')}.csv"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(header + "".join(mine))
    for site in ("cleveland", "hungary", "long_beach"):
        assert main(["schema", f"{site}.csv", "-o", f"{site}.yaml"]) == 0
    for name in ("base", "clients/a", "clients/b", "clients/c", "rounds/3/base", "rounds/3/clients/0"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        save_file({"weight": torch.randn(3, 4), "bias": torch.randn(3)}, folder / f"{name}.safetensors")
    shutil.copy(folder / "clients/b.safetensors", folder / "rounds/3/clients/1.safetensors")
    for name in ("FL_global_model.pt", "site-1/local_model.pt", "site-2/local_model.pt", "workspace/server/"):
        path = folder / (name + "FL_global_model.pt" if name.endswith("/") else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"weight": torch.randn(3, 4), "bias": torch.randn(3)}, path)
    for site in ("site-1", "site-2"):
        shutil.copytree(folder / site, folder / "workspace" / site)
    (folder / "rounds/3/sizes.csv").write_text("name,size\n0,10\n1,20\n")
    (folder / "sizes.csv").write_text("name,size\nsite-1,10\nsite-2,20\n")
    for split, client in product(("train", "test"), range(2)):
        path = folder / "PFLlib/dataset/MNIST" / split / f"{client}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        x, y = np.random.default_rng(client).random((8, 1, 28, 28), dtype=np.float32), np.arange(8) % 2
        np.savez_compressed(path, data=np.array({"x": x, "y": y}, dtype=object))
    (folder / "PFLlib/dataset/MNIST/config.json").write_text('{"num_clients": 2, "num_classes": 2}')
    for name in ("start", "clinic-0", "clinic-1"):
        (folder / "adapters" / name).mkdir(parents=True)
        factors = {"lora_A": torch.randn(2, 6), "lora_B": torch.randn(4, 2)}
        tensors = {f"base_model.model.layer.{factor}.weight": value for factor, value in factors.items()}
        save_file(tensors, folder / "adapters" / name / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "rank_pattern": {}, "alpha_pattern": {}}
        (folder / "adapters" / name / "adapter_config.json").write_text(json.dumps(config))
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    quick = ["--data", "heart", "--rounds", "1", "--quiet"]
    for method in ("FedAvg", "Ditto"):
        assert main(["run", "--method", method, "--out", f"runs/{'ab'[method == 'Ditto']}", *quick]) == 0
    rules = [{"name": "Mean"}, {"name": "Mean", "by": "uniform"}]
    comity.study(data="heart", rule=rules, rounds=1, jobs=1, out="studies/x")
    shutil.copytree("studies/x", "studies/confree-table1-desk")


def shortened(line: str) -> list[str]:
    """The arguments of a command, with one round and one seed."""
    _, name, *arguments = shlex.split(line, comments=True)
    for option, value in FASTER.items():
        if f"--{option}" in arguments:
            arguments[arguments.index(f"--{option}") + 1] = value
    arguments = [each for given in arguments for each in (sorted(glob.glob(given)) if "*" in given else [given])]
    if name in ("run", "study", "join") and "--help" not in arguments and "--dry-run" not in arguments:
        arguments += ["--rounds", "1"] * ("--rounds" not in arguments)
        arguments += ["--seeds", "1"] * (name != "run" and "--seeds" not in arguments) + ["--quiet"]
    if name == "bench" and "--help" not in arguments:
        small = {"--federations": "heart", "--rounds": "1", "--seeds": "3", "--lr": "0.1", "--jobs": "1"}
        arguments += [each for pair in small.items() if pair[0] not in arguments for each in pair] + ["--quiet"]
    if name == "reproduce":
        arguments += ["--rounds", "1", "--seeds", "1", "--quiet"] if arguments[0] == "demo" else ["--dry-run"]
    return [name, *arguments]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page) and page not in TUTORIALS])
def test_every_command_of_a_page_works(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr("comity.report._writer.QUIET_SECONDS", 0)  # --watch ends at once: the runs are finished
    skipped = (*NOT_RUN, *(() if "COMITY_DATA" in os.environ else NEEDS_DATA))
    prepare(tmp_path, "outcome" if re.search("target[ =]outcome", " ".join(commands(page))) else "disease")
    failed = []
    for line in commands(page):
        if not any(words in line for words in skipped):
            arguments = shortened(line)
            try:
                code = main(arguments)
            except SystemExit as end:
                code = int(end.code or 0)
            failed += [(line, code)] if code else []
    for module in MODULES:
        sys.modules.pop(module.removesuffix(".py"), None)
    assert not failed


def test_what_is_not_run_is_still_on_a_page() -> None:
    every = " ".join(line for page in PAGES for line in commands(page))
    assert [words for words in (*NOT_RUN, *NEEDS_DATA) if not re.search(re.escape(words), every)] == []
