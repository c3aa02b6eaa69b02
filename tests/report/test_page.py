"""The file itself: whole, alone, and harmless whatever the names in it are."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from comity._errors import ComityError, install
from comity.commands import command
from comity.report import write
from comity.report._watch import Reader, watch
from comity.results import LoadedStudy, RunFolder, StudyFolder
from comity.results.schema import PlannedRun, Tuned
from run_folders import make

EVIL = "<script>hacked=1</script>\"'&</td>"


class Outline(HTMLParser):
    """Elements and their text, as a browser would make them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture
def study(tmp_path: Path) -> Path:
    for seed in (0, 1):
        for rule in ("Mean", "CALM"):
            accuracy = [0.6, 0.7, 0.8, 0.4] if rule == "Mean" else [0.7, 0.7, 0.9, 0.45]
            make(tmp_path / "study" / f"{rule}-{seed}", accuracy, alone=[0.5] * 4, rule=rule, seed=seed)
    return tmp_path / "study"


def test_one_file_that_needs_nothing_else(study: Path, tmp_path: Path) -> None:
    file = write([study], tmp_path / "deep" / "report.html")
    text = file.read_text()
    tags = Outline(text).tags
    names = [tag for tag, _ in tags]
    assert names.count("h1") == 1
    assert not {"link", "iframe", "img", "object"} & set(names)
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:|//)", text)
    assert not [about for tag, about in tags if tag == "script" and "src" in about]
    rows = [about for tag, about in tags if tag == "tr" and "data-setting" in about]
    assert len(rows) == 3  # Local as the others noted it, Mean, CALM
    assert not list(file.parent.glob(".*"))


def test_only_our_own_script_may_run(study: Path, tmp_path: Path) -> None:
    text = write([study], tmp_path / "r.html").read_text()
    script = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text


def test_names_from_files_are_only_ever_text(tmp_path: Path) -> None:
    path = make(
        tmp_path / "<b>run</b>",
        [0.6, 0.4],
        alone=[0.5, 0.5],
        method=EVIL,
        layers=(EVIL, "head"),
        options={"model": {"name": EVIL}, "rule": {"name": EVIL, EVIL: EVIL}},
    )
    make(tmp_path / "damaged", [0.6, 0.4], options={"participation": EVIL})
    make(tmp_path / "other", [0.6, 0.4], method="Ditto")
    folder = RunFolder(path)
    partition = folder.partition()
    assert partition is not None
    folder.add_partition(replace(partition, name=EVIL, partition=EVIL, client_names=[EVIL, EVIL]))
    folder.add_result(replace(folder.result(), versions={EVIL: EVIL}))
    StudyFolder(tmp_path).write_planned(
        [
            PlannedRun(folder="<b>run</b>", title="a"),
            PlannedRun(folder="other", title="b"),
            PlannedRun(folder="damaged", title="c"),
            PlannedRun(folder="c", title=EVIL, error=EVIL),
        ]
    )
    StudyFolder(tmp_path).write_tuning(
        [Tuned(cell=EVIL, option=EVIL, chosen=EVIL, chosen_by=EVIL, seeds=[0], tried=[])]
    )
    text = write([tmp_path], tmp_path / "r.html").read_text()
    assert "A damaged run is not in the table" in text
    assert "<script>hacked" not in text
    assert "<b>run" not in text
    assert [tag for tag, _ in Outline(text).tags].count("script") == 2
    assert data_of(text)["cells"][0]["methodName"] == EVIL


def test_unfinished(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6] * 4, rounds=50, done=7)
    make(tmp_path / "b", [0.6] * 4, rounds=50, done=0, rule="CALM")
    text = write([tmp_path], tmp_path / "r.html").read_text()
    assert "has done 7 of 50 rounds" in text
    assert "round 0 of 50" in text
    data = data_of(text)
    assert [run["done"] for run in data["runs"]] == [False, False]


def test_nothing_is_written_for_bad_input(tmp_path: Path) -> None:
    good = make(tmp_path / "run", [0.5] * 3)
    (tmp_path / "empty").mkdir()
    file = tmp_path / "r.html"
    for arguments, told in (
        ([], "comity report needs PATHS: comity report PATHS… [options]"),
        ([str(tmp_path / "nowhere")], "does not exist"),
        ([str(tmp_path / "empty")], "holds no run"),
        ([str(good / "config.yaml")], "is a file"),
        ([str(good), "--fast"], "unknown option '--fast'"),
        ([str(good), "--watch=1"], "--watch takes no value, got '1'"),
        ([str(good), "--figures"], "--figures needs a value"),
        ([str(good), "-o", str(good / "config.yaml")], "must end in .html"),
        ([str(good), "-o", str(tmp_path)], "must end in .html"),
    ):
        output = [] if "-o" in arguments else ["-o", str(file)]
        with pytest.raises(ComityError, match=re.escape(told)) as caught:
            command("report", [*arguments[:1], *output, *arguments[1:]] if arguments else [])
        assert "\n" not in str(caught.value)
    assert not file.exists()


def test_command(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.html"
    assert command("report", [str(study), "--output", str(file)]) == 0
    out = capsys.readouterr().out
    assert "CALM lifts FedRep by 6.25 points [6.25, 6.25]" in out
    assert "→ Join. FedRep + CALM helps on average" in out
    assert f"Report: {file}" in out
    assert command("report", [str(study), f"--output={file}", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert command("report", ["--help"]) == 0
    assert "comity report PATH" in capsys.readouterr().out


def test_figures_say_what_is_missing(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ComityError, match=re.escape(install("report"))):
        command("report", [str(study), "-o", str(tmp_path / "r.html"), "--figures", str(tmp_path / "figures")])
    assert not (tmp_path / "r.html").exists()


def test_it_starts_without_torch(study: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from comity.commands import command;"
        f"command('report', [{str(study)!r}, '-o', {str(tmp_path / 'r.html')!r}, '--quiet']);"
        "print([name for name in ('torch', 'scipy.stats', 'matplotlib', 'comity.engine') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_page_that_cannot_be_written_leaves_the_old_one(study: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ComityError, match="could not be written"):
        write([study], tmp_path / "file" / "r.html")


def test_watching(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make(run, [0.5] * 3, rounds=5, done=1)
    published: list[tuple[int, bool, bool]] = []

    def publish(study: LoadedStudy, text: str) -> None:
        (run,) = study.runs
        published.append((run.rounds_done, run.finished, text == "live"))

    def later() -> None:
        time.sleep(0.3)
        make(run, [0.6] * 3, rounds=5, done=3)
        time.sleep(0.3)
        make(run, [0.7] * 3, rounds=5)

    thread = threading.Thread(target=later)
    thread.start()
    study = watch(
        lambda reader: LoadedStudy(tmp_path, read=reader),
        lambda study, _, live: (study, "live" if live else "still"),
        publish,
        every=0.05,
        patience=0.2,
    )
    thread.join()
    assert study.over
    assert published[0] == (1, False, True)
    assert (3, False, True) in published
    assert published[-1] == (5, True, False)
    assert len(published) <= 8  # only news are written


def test_ctrl_c_leaves_a_page_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "run", [0.5] * 3, rounds=5, done=1)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    file = tmp_path / "r.html"
    assert command("report", [str(tmp_path), "-o", str(file), "--watch", "--quiet"]) == 0
    assert data_of(file.read_text())["live"] is None


@pytest.mark.parametrize("name", ["weights.jsonl", "cosines.jsonl"])
def test_watching_goes_on_without_a_damaged_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for run in ("whole", "damaged"):
        make(tmp_path / run, [0.5] * 3, rounds=5, done=1, seed=len(run))
    (tmp_path / "damaged" / name).write_text('{"round": 1, "group": 7}\n')
    looks = iter(range(2))

    def rest(_: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt
        make(tmp_path / "whole", [0.6] * 3, rounds=5, done=2, seed=5)

    monkeypatch.setattr(time, "sleep", rest)
    file = tmp_path / "r.html"
    assert command("report", [str(tmp_path), "-o", str(file), "--watch"]) == 0
    told = capsys.readouterr()
    assert told.err.count("left out") == told.err.count("\n") == 1
    assert str(tmp_path / "damaged" / name) in told.err
    assert "1 run)" in told.out
    assert data_of(file.read_text())["live"] is None


def test_a_folder_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [0.5] * 3, rounds=5, done=1)
    reader = Reader()
    first = reader(run)
    assert reader(run) is first
    make(run, [0.5] * 3, rounds=5, done=2)
    assert reader(run) is not first
