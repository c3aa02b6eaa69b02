"""A metric, an option, a verb and an extension are each added in one file, and seen in run, table, page and help."""

import csv
import json
from pathlib import Path

import pytest

from comity.__main__ import main
from comity.compare import LoadedStudy

MINE = '''
from comity.engine import Extension, Verb
from comity.methods import Payload
from comity.metrics import Metric


class Volume(Payload):
    volume: float


class Shout(Extension):
    """Ask every client how loud it is.

    Options:
        volume: how loud clients are
    """

    volume: float = 1.0

    metrics = (
        Metric(
            key="loudness",
            label="loudness of clients",
            meaning="How loud a client is",
            compute=lambda judged: judged.notes["loudness"],
            digits=1,
        ),
    )

    def verbs(self, verbs):
        return verbs | {"shout": Verb("shout", verbs["fit"].message, Volume, self.shout)}

    def shout(self, call):
        client = call.client("shout")
        return Volume(volume=self.volume * (1 + client.id)), client.state()

    def judge(self, judgement):
        judgement.notes["loudness"] = self.volume * (1 + judgement.client.id)

    def after_round(self, run):
        replies = run.server.ask_clients("shout", run.server.questions(run.server.scored))
        run.server.record.method["heard"] = sum(reply.volume for reply in replies.values())
'''
RUN = ["run", "--extension", "mine.Shout", "--extension.volume", "3", "--data", "synthetic", "--model", "logistic"]


def test_an_extension_in_one_file_is_seen_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    size = ["--data.samples", "20", "--clients", "3", "--rounds", "2", "--out", "runs/a", "--quiet"]
    assert main([*RUN, *size]) == 0
    capsys.readouterr()

    # the option, in help and in the run's configuration
    assert main(["run", "--extension", "mine.Shout", "--help"]) == 0
    help = " ".join(capsys.readouterr().out.split())
    assert "--extension.volume" in help
    assert "how loud clients are" in help
    assert "volume: 3.0" in (tmp_path / "runs/a/config.yaml").read_text()

    # the verb, in the round's record
    rounds = [json.loads(line) for line in (tmp_path / "runs/a/rounds.jsonl").read_text().splitlines()]
    assert [record["method"]["heard"] for record in rounds] == [18.0, 18.0]

    # the metric, in files, table and page
    with (tmp_path / "runs/a/clients.csv").open() as file:
        assert [row["loudness"] for row in csv.DictReader(file)][-3:] == ["3.0", "6.0", "9.0"]
    assert json.loads((tmp_path / "runs/a/result.json").read_text())["last"]["metrics"]["loudness"]["mean"] == 6
    columns = {column.name: column for column in LoadedStudy(tmp_path / "runs").table().columns}
    assert columns["loudness"].heading == "loudness of clients"
    assert main(["table", "runs/a", "--columns", "loudness"]) == 0
    assert "6.0" in capsys.readouterr().out
    assert main(["report", "runs/a", "-o", "page.html"]) == 0
    assert "loudness of clients" in (tmp_path / "page.html").read_text()
