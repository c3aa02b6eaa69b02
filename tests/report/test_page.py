"""The file itself: whole, alone, and harmless whatever the names in it are."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from comity._errors import ComityError, install
from comity.commands import command
from comity.compare import LoadedStudy
from comity.metrics import BRIER
from comity.report import _writer, write
from comity.results import PlannedRun, RunFolder, StudyFolder, Trial, Tuned
from helpers import Capture, Options, Patch
from run_folders import make

EVIL = "<script>hacked=1</script>\"'&</td>"


def data_of(text: str) -> Options:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    return json.loads(found[1])


@pytest.fixture
def study(tmp_path: Path) -> Path:
    for seed in (0, 1):
        for rule in ("Mean", "CALM"):
            accuracy = [0.6, 0.7, 0.8, 0.4] if rule == "Mean" else [0.7, 0.7, 0.9, 0.45]
            make(tmp_path / "study" / f"{rule}-{seed}", accuracy, alone=[0.5] * 4, rule=rule, seed=seed)
    return tmp_path / "study"


def test_one_file_that_needs_nothing_else_and_runs_no_other_script(study: Path, tmp_path: Path) -> None:
    file = write([study], tmp_path / "deep" / "report.html")
    text = file.read_text()
    assert text.count("<h1") == 1
    assert not re.search(r"<(link|iframe|img|object|script[^>]+src)\b", text)
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:|//)", text)
    assert len(re.findall(r"<tr [^>]*data-setting", text)) == 2  # Mean and CALM
    assert not list(file.parent.glob(".*"))
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text


def test_it_leads_with_the_verdict_and_has_its_numbers(study: Path, tmp_path: Path) -> None:
    text = write([study], tmp_path / "r.html").read_text()
    loaded = LoadedStudy(study)
    verdict, cell = loaded.verdict, loaded.verdict.cell
    assert cell is not None
    assert f'<h1>{verdict.title}</h1>\n<p class="evidence">{verdict.evidence}</p>' in text
    assert re.findall(r"<dt>(.*?)</dt>", text)[: len(verdict.advice)] == [what for what, _ in verdict.advice]
    data = data_of(text)
    assert data["focus"] == loaded.cells.index(cell)
    for drawn, known in zip(data["cells"], loaded.cells, strict=True):
        assert drawn["mean"]["state"] == known.state
        assert drawn["mean"]["gain"] == round(known.gain.gain, 6)
        for name, field in {"id": "client", "seed": "seed", "state": "state"}.items():
            assert drawn["clients"][name] == [getattr(row, field) for row in known.clients]
        assert drawn["clients"]["name"] == [f"client {row.client}, seed {row.seed}" for row in known.clients]
        for name in ("gain", "low", "high"):
            assert drawn["clients"][name] == [round(getattr(row, name), 6) for row in known.clients]


@pytest.mark.parametrize("settings", [1, 2])
def test_seven_columns_with_the_metric_that_decides_unless_all_are_asked_for(tmp_path: Path, settings: int) -> None:
    for metric, alpha, seed in product(("accuracy", "brier"), range(settings), (0, 1)):
        options = {"metric": metric, "partition.alpha": 0.1 + alpha}
        run = tmp_path / metric / f"{alpha}-{seed}"
        make(run, [0.6] * 4, alone=[0.5] * 4, seed=seed, options=options, metrics_too={BRIER.key: 0.3})
    for metric, heading in {"accuracy": "accuracy, %", "brier": BRIER.label}.items():
        text = write([tmp_path / metric], tmp_path / "r.html").read_text()
        head = re.search(r'<section id="results">.*?</thead>', text, flags=re.DOTALL)
        cells = re.findall(r'<th scope="col" class="([^"]*)".*?<button[^>]*>(.*?)</button>', head[0], flags=re.DOTALL)
        shown = [label for kind, label in cells if kind != "more"]
        assert len(shown) <= 7 < len(cells)
        assert shown[settings] == heading


def test_names_from_files_are_only_ever_text(tmp_path: Path) -> None:
    options = {"model": {"name": EVIL}, "rule": {"name": EVIL, EVIL: EVIL}}
    path = make(
        tmp_path / "<b>run</b>", [0.6, 0.4], alone=[0.5] * 2, method=EVIL, layers=(EVIL, "head"), options=options
    )
    make(tmp_path / "damaged", [0.6, 0.4], options={"participation": EVIL})
    make(tmp_path / "other", [0.6, 0.4], method="Ditto")
    folder = RunFolder(path)
    partition = folder.partition()
    folder.add_partition(replace(partition, name=EVIL, partition=EVIL, client_names=[EVIL, EVIL]))
    folder.add_result(replace(folder.result(), versions={EVIL: EVIL}))
    planned = [PlannedRun(folder=name, title=name) for name in ("<b>run</b>", "other", "damaged")]
    StudyFolder(tmp_path).write_planned([*planned, PlannedRun(folder="c", title=EVIL, error=EVIL)])
    tried = [Trial(value=EVIL, validation=0.5), Trial(value=2, validation=None)]
    search = Tuned(cell=EVIL, option=EVIL, chosen=EVIL, chosen_by=EVIL, seeds=[0], tried=tried)
    StudyFolder(tmp_path).write_tuning([search])
    text = write([tmp_path], tmp_path / "r.html").read_text()
    assert "A damaged run is not in the table" in text
    assert "(50.00 %), 2 (failed)</dd>" in text
    assert "<script>hacked" not in text
    assert "<b>run" not in text
    assert text.count("<script") == 2
    assert data_of(text)["cells"][0]["methodName"] == EVIL


def test_nothing_is_written_for_bad_input(tmp_path: Path, monkeypatch: Patch) -> None:
    good = make(tmp_path / "run", [0.5] * 3)
    (tmp_path / "empty").mkdir()
    file, taken = tmp_path / "r.html", tmp_path / "file"
    taken.write_text("")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for arguments, told in (
        ([], "PATHS is missing: comity report PATHS… [options]"),
        ([str(tmp_path / "nowhere")], "does not exist"),
        ([str(tmp_path / "empty")], "holds no run"),
        ([str(good / "config.yaml")], "is a file"),
        ([str(good), "--fast"], "unknown option '--fast'"),
        ([str(good), "--watch=1"], "--watch takes no value, got '1'"),
        ([str(good), "--watch", "--base", "Men"], "unknown base 'Men'"),
        ([str(good), "--figures"], "--figures needs a value"),
        ([str(good), "--figures", str(tmp_path / "figures")], install("report")),
        ([str(good), "--figures", str(taken)], f"--figures {taken} is a file, not a folder"),
        ([str(good), "-o", str(good / "config.yaml")], "must end in .html"),
        ([str(good), "-o", str(tmp_path)], "must end in .html"),
    ):
        output = [] if "-o" in arguments else ["-o", str(file)]
        with pytest.raises(ComityError, match=re.escape(told)) as caught:
            command("report", [*arguments[:1], *output, *arguments[1:]] if arguments else [])
        assert "\n" not in str(caught.value)
    assert not file.exists()
    with pytest.raises(OSError, match="could not be written"):
        write([good], taken / "r.html")


def test_command(study: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "r.html"
    assert command("report", [str(study), "--output", str(file)]) == 0
    out = capsys.readouterr().out
    verdict, *advice, written, _ = out.splitlines()
    told = LoadedStudy(study).verdict
    assert verdict == f"{told.title}. {told.evidence}"
    assert advice == [f"→ {what}. {why}" for what, why in told.advice]
    assert written.startswith(f"Report: {file}")
    assert command("report", [str(study), f"--output={file}", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert command("report", ["--help"]) == 0
    assert "comity report PATH" in capsys.readouterr().out


def test_it_starts_without_torch(study: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from comity.commands import command;"
        f"command('report', [{str(study)!r}, '-o', {str(tmp_path / 'r.html')!r}, '--quiet']);"
        "print([name for name in ('torch', 'scipy.stats', 'matplotlib', 'comity.engine') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def follow(folder: Path, monkeypatch: Patch, *meanwhile: Callable[[], object]) -> list[Any]:
    """What ``live`` was in each page that ``--watch`` wrote; one thing happens in each pause, and then Ctrl-C."""
    steps, live = iter(meanwhile), []

    def rest(_: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    def note(file: Path, text: str) -> None:
        live.append(data_of(text)["live"])
        file.write_text(text)

    monkeypatch.setattr(time, "sleep", rest)
    monkeypatch.setattr(_writer, "write_text", note)
    assert command("report", [str(folder), "-o", str(folder / "r.html"), "--watch"]) == 0
    return live


def test_only_news_are_written_until_ctrl_c(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    run = make(tmp_path / "run", [0.5] * 3, rounds=5, done=1)
    live = follow(tmp_path, monkeypatch, lambda: None, lambda: make(run, [0.6] * 3, rounds=5, done=3), lambda: None)
    assert live == [_writer.CHECK_SECONDS, _writer.CHECK_SECONDS, None]  # and the last page stands still
    assert "has done 1 of 5 rounds" in (out := capsys.readouterr().out)
    assert "has done 3 of 5 rounds" in out
    text = (tmp_path / "r.html").read_text()
    assert "<td>round 3 of 5</td>" in text
    assert [run["done"] for run in data_of(text)["runs"]] == [False]


def test_watching_ends_some_time_after_the_last_run(tmp_path: Path, monkeypatch: Patch) -> None:
    run = make(tmp_path / "run", [0.5] * 3, rounds=5, done=1)
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def later() -> None:
        now[0] += _writer.QUIET_SECONDS

    steps = later, lambda: make(run, [0.6] * 3), lambda: None, later, lambda: pytest.fail("it still waits")
    assert follow(tmp_path, monkeypatch, *steps) == [_writer.CHECK_SECONDS, _writer.CHECK_SECONDS, None]


def test_a_busy_machine_does_not_make_the_pauses_long(tmp_path: Path, monkeypatch: Patch) -> None:
    make(tmp_path / "run", [0.5] * 3, rounds=5, done=1)
    clock, pauses = count(0.0, 60.0), []

    def rest(seconds: float) -> None:
        pauses.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    monkeypatch.setattr(time, "sleep", rest)
    assert command("report", [str(tmp_path), "-o", str(tmp_path / "r.html"), "--watch"]) == 0
    assert pauses == [_writer.CHECK_SECONDS]


def test_watching_starts_before_there_is_a_folder(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    study, page = tmp_path / "study", ["-o", str(tmp_path / "r.html"), "--watch"]
    steps = iter(
        (
            lambda: study.mkdir(),
            lambda: StudyFolder(study).write_planned([PlannedRun(folder="a", title="a")]),
            lambda: make(study / "a", [0.5] * 3, rounds=5, done=1),
        )
    )

    def rest(_: float) -> None:
        step = next(steps, None)
        assert (tmp_path / "r.html").exists() == (step is None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(time, "sleep", rest)
    assert command("report", [str(study), *page]) == 0
    waiting, empty, planned, following, *_ = capsys.readouterr().out.splitlines()
    assert waiting == f"Waiting for a run: {study} does not exist. Ctrl-C ends."
    assert empty.startswith(f"Waiting for a run: {study} holds no run: ")
    assert planned == f"Waiting for a run: {study} holds no run yet. Ctrl-C ends."
    assert following.startswith(f"Following {study}")


def test_ctrl_c_ends_waiting_without_a_traceback(tmp_path: Path) -> None:
    program = "import time, _thread\ntime.sleep = lambda _: _thread.interrupt_main()\n"
    program += "from comity.__main__ import main\nimport sys\nsys.exit(main(sys.argv[1:]))"
    arguments = ["report", "later", "-o", "r.html", "--watch"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "comity: interrupted\n")
    assert set(done.stdout.splitlines()) == {"Waiting for a run: later does not exist. Ctrl-C ends."}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["weights.jsonl", "cosines.jsonl"])
def test_watching_goes_on_without_a_damaged_run(tmp_path: Path, monkeypatch: Patch, capsys: Capture, name: str) -> None:
    for run in ("whole", "damaged"):
        make(tmp_path / run, [0.5] * 3, rounds=5, done=1, seed=len(run))
    (tmp_path / "damaged" / name).write_text('{"round": 1, "group": 7}\n')
    follow(tmp_path, monkeypatch, *[lambda: make(tmp_path / "whole", [0.6] * 3, rounds=5, done=2, seed=5)] * 2)
    told = capsys.readouterr()
    assert told.err.count("left out") == told.err.count("\n") == 1
    assert str(tmp_path / "damaged" / name) in told.err
    assert "1 run)" in told.out
