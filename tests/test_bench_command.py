"""``comity bench``: a page, tables and a picture; a method of one's own beside stored results."""

import re
import sys
from pathlib import Path

import pytest

from comity.__main__ import main
from comity.compare import read_results
from comity.data import natural
from comity.studies import Bench
from helpers import rejected

FAST = ["--rounds", "1", "--seeds", "3", "--jobs", "1", "--lr", "0.1", "--model", "logistic"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The dotted name of a method."""
    (tmp_path / "methodofmine.py").write_text(
        'from comity.methods import FedAvg\n\n\nclass Mine(FedAvg):\n    """<b>Mine</b>."""\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return "methodofmine.Mine"


def test_a_benchmark_ends_with_a_page_and_a_method_of_ones_own_stands_beside_it(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.yaml"
    file.write_text("data.max_clients: 6\ngrid:\n  - {method: FedAvg}\n  - {method: FedAvg, guard: mixture}\n")
    small = ["--config", str(file), "--federations", "heart,covid", *FAST]
    assert main(["bench", *small, "--out", "all", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    page = Path("all/leaderboard.html").read_text()
    assert not re.findall(r"<script|https?://", page)
    for words in (
        "FedAvg, guarded",
        "two local models mixed",
        "majority class",
        "Cleveland",
        "covid",
        "prefers",
        "@media print",
    ):
        assert words in page, words
    assert Path("all/leaderboard.png").read_bytes()[:4] == b"\x89PNG"
    assert Path("all/clients.csv").read_text().count("heart,FedAvg,") == 4
    monkeypatch.setattr("comity.studies.LEADERBOARD", Path("all/leaderboard.csv").resolve())
    assert main(["bench", *small, "--method", own, "--out", "mine"]) == 0
    said = capsys.readouterr().out
    assert own in said
    assert "FedAvg, guarded (stored)" in said
    assert "Local (stored)" not in said
    mine = {(each.federation, each.configuration): each for each in read_results(Path("mine/leaderboard.csv"), False)}
    assert mine["heart", own].gain == mine["heart", "FedAvg"].gain, "it is FedAvg"
    assert not list(Path("mine/heart/runs").glob("fedavg*")), "nothing else was run"
    assert "stored</span>" in Path("mine/leaderboard.html").read_text()
    assert Path("mine/leaderboard.png").read_bytes()[:4] == b"\x89PNG", "without FedAvg, one's own is drawn"


@pytest.mark.slow
def test_a_quick_benchmark_of_the_federations_that_come_with_comity(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMITY_DATA", str(elsewhere))
    assert main(["bench", "--quick", "--out", "quick"]) == 0
    said = capsys.readouterr().out
    results = read_results(Path("quick/leaderboard.csv"), False)
    shipped = {name for name, each in natural().items() if each.embedded} | {"heart"}
    assert {each.federation for each in results} == shipped
    ranked = [each for each in results if each.kind != "control" and each.federation == "heart"]
    assert len(ranked) == 7 + 2, "seven configurations, local training, and two local models mixed"
    assert len(results) == len(shipped) * (len(ranked) + 2), "every configuration runs everywhere"
    assert {each.seeds for each in results} == {3}
    for each in (each for each in results if each.kind == "configuration"):
        assert each.low < each.gain < each.high
        assert each.clients > 3
    clients = Path("quick/clients.csv").read_text().splitlines()[1:]
    assert len(clients) == sum(each.clients for each in results if each.kind == "configuration")
    assert "has the best mean rank" in said
    assert "no regression: parkinsons (15, 20, 25, 30)." in " ".join(said.split())


def test_missing_federations_are_listed_in_one_line(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ", ".join(name for name, each in natural().items() if not each.embedded)
    monkeypatch.setenv("COMITY_DATA", str(elsewhere))
    monkeypatch.setattr("comity.studies.bench", lambda *_, **__: Bench())
    assert main(["bench", "--quick"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"Without {few.rpartition(', ')[0]} and {few.rpartition(', ')[2]}: their data are missing")
    assert said.endswith("In the others, which come with comity, joining harms few clients.")
    for more in (["--quiet"], ["--federations", "heart"]):
        assert main(["bench", "--quick", *more]) == 0
        assert capsys.readouterr().out == ""


def test_mistakes_are_one_line(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown scale 'paper'" in rejected(capsys, "bench", "--scale", "paper", "--federations", "heart")
    assert "nowhere" in rejected(capsys, "bench", "--federations", "nowhere")
    assert "FedRep" in rejected(capsys, "bench", "--method", "FedRp", "--federations", "heart", *FAST)
    assert not list(elsewhere.iterdir())


def test_a_federation_that_fails_is_named_and_the_exit_code_says_so(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "bad.csv").write_text("client,target\n1,2\n")
    assert main(["bench", "--method", "FedAvg", "--federations", "bad.csv", *FAST, "--quiet", "--out", "x"]) == 1
    assert "comity: bad failed: " in capsys.readouterr().err
