"""The leaderboard of a benchmark: from results to rows, files and text."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from comity import ComityError
from comity.compare import (
    Leaderboard,
    LoadedStudy,
    Result,
    benchmark_clients_csv,
    benchmark_studies,
    clients_of,
    read_results,
    results_csv,
    results_of,
)
from comity.studies import study


def result(federation: str, configuration: str, gain: float, **more: Any) -> Result:
    known: dict[str, Any] = {"low": gain - 1, "high": gain + 1, "worse": 1, "undecided": 2, "not_worse": 3}
    known |= {"metric": "accuracy", "value": 80 + gain, "seeds": 3, "conditions": "rounds=3"}
    return Result(federation=federation, configuration=configuration, gain=gain, **known | more)


def local(federation: str) -> Result:
    return result(federation, "Local", 0.0, kind="reference", low=math.nan, high=math.nan, worse=0, undecided=0)


BOTH = [result(f, c, gain) for f in ("a", "b") for c, gain in (("FedAvg", -3.0), ("Ditto", 2.0))]


def test_rows_are_ordered_by_mean_rank_and_local_training_is_ranked() -> None:
    board = Leaderboard([*map(local, "ab"), *BOTH, result("a", "majority class", -9.0, kind="control")])
    assert [(row.configuration, row.rank and row.rank.mean) for row in board.rows] == [
        ("Ditto", 1.0),
        ("Local", 2.0),
        ("FedAvg", 3.0),
        ("majority class", None),
    ]
    assert board.answer.startswith("Ditto has the best mean rank, 1.0 of 3 over 2 federations")
    first = board.rows[0]
    assert (first.worse, first.clients, first.gaining, first.losing) == (2, 12, 2, 0)


def test_a_configuration_with_a_missing_result_has_no_rank() -> None:
    board = Leaderboard([*map(local, "ab"), *BOTH, result("a", "FedRep", 5.0)])
    assert {row.configuration: row.rank is None for row in board.rows} == {
        "Ditto": False,
        "Local": False,
        "FedAvg": False,
        "FedRep": True,
    }
    begun = Leaderboard([*map(local, "abc"), *BOTH])
    assert begun.ranked == (["a", "b"], ["Local", "FedAvg", "Ditto"]), "a federation that is under way is not ranked"
    more = [result(f, c, 1.0) for f in "ab" for c in ("x", "y", "z")]
    under_way = Leaderboard([*map(local, "abc"), *BOTH, *more, *(result("c", c, 1.0) for c in ("FedAvg", "x"))])
    assert under_way.ranked[0] == ["a", "b"]
    assert len(under_way.ranked[1]) == 6
    assert any("results are missing: c" in note for note in begun.notes)


def test_stored_results_stand_beside_fresh_ones_if_the_conditions_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "leaderboard.csv"
    file.write_text(results_csv([*map(local, "abc"), *BOTH, result("c", "FedAvg", 1.0)]))
    stored = read_results(file)
    assert all(each.stored for each in stored)
    fresh = [local("a"), result("a", "mine", 7.0), replace(local("b"), conditions="rounds=9")]
    board = Leaderboard([*fresh, result("b", "mine", 7.0, conditions="rounds=9")], stored)
    assert board.federations == ["a", "b"], "those that were run"
    assert {row.configuration: row.stored for row in board.rows} == {
        "mine": False,
        "Local": False,
        "Ditto": True,
        "FedAvg": True,
    }
    assert "FedAvg (stored)" in board.markdown()
    assert "mine (stored)" not in board.markdown()
    assert any("Stored results of b are not shown" in note for note in board.notes)
    assert board.by_configuration["FedAvg"].keys() == {"a"}


def test_a_configuration_of_ones_own_is_reported_first_and_at_80_columns(tmp_path: Path) -> None:
    file = tmp_path / "leaderboard.csv"
    file.write_text(results_csv([replace(each, seeds=15) for each in (*map(local, "ab"), *BOTH)]))
    mine = [result(f, "mymodule.Mine", 2.5, worse=0, seconds=1.5) for f in "ab"]
    board = Leaderboard([*map(local, "ab"), *mine], read_results(file))
    first, last = board.answer.split(" Its mean gain")[0], board.answer.rpartition("; ")[2]
    assert first == "mymodule.Mine has mean rank 1.0 of 4."
    assert "significant on 2 of 2 federations, its mean loss on 0; 0 of 10 clients are worse." in board.answer
    assert last == "with so few federations no difference is significant (critical difference 3.3)."
    assert any("committed leaderboard's (15 seeds)" in note for note in board.notes)
    assert [row.configuration for row in board.own] == ["mymodule.Mine"]
    assert Leaderboard([*map(local, "ab"), *mine, *BOTH]).own == [], "nothing is stored: all rows are one's own"
    console = Console(width=80, record=True)
    console.print(board)
    shown = console.export_text().splitlines()
    assert max(map(len, shown)) <= 80
    assert ["a", "+2.5", "[+1.5,", "+3.5]", "0", "/", "2", "/", "3", "1.5"] in map(str.split, shown)


def test_thresholds_of_a_numeric_target_are_named() -> None:
    board = Leaderboard(
        [local("traffic"), result("traffic", "FedAvg", 1.0), local("air"), result("air", "FedAvg", 1.0)]
    )
    (note,) = (note for note in board.notes if "Numeric targets" in note)
    assert note.endswith("no regression: traffic (60).")
    assert not any("Numeric targets" in note for note in Leaderboard([*map(local, "ab"), *BOTH]).notes)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    results = [local("a"), *BOTH]
    file.write_text(results_csv(results))
    for one, other in zip(read_results(file, stored=False), results, strict=True):
        assert repr(one) == repr(other)
    for text in ("federation,gain\na,1\n", "a,b\n1,2\n", results_csv(BOTH).replace("-3", "x")):
        file.write_text(text)
        with pytest.raises(ComityError, match="no file of a leaderboard"):
            read_results(file)


def test_text_has_intervals_clients_and_the_metric() -> None:
    log_loss = result("c", "FedAvg", 0.1234, metric="log-loss", low=math.nan, high=math.nan)
    board = Leaderboard([*map(local, "abc"), *BOTH, log_loss])
    text = board.markdown()
    assert "−3.0 [−4.0, −2.0]<br>1 / 2 / 3" in text
    assert "| +0.123<br>1 / 2 / 3 |" in text
    assert "*log-loss*" in text
    assert "ranks are" in text
    console = Console(width=160, record=True)
    console.print(board)
    assert "FedAvg" in (shown := console.export_text())
    assert "critical difference" in shown.lower()


def test_a_study_gives_the_numbers_of_its_own_table(tmp_path: Path) -> None:
    grid = [{"method": "FedAvg"}, {"method": {"name": "FedAvg", "personal_model": "finetune"}, "rule": "ConFREE"}]
    study(data="heart", rounds=1, model="logistic", seeds=3, jobs=1, grid=grid, out=tmp_path / "heart")
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "study.yaml").write_text("seeds: 3\n")
    assert benchmark_studies(tmp_path) == {"heart": tmp_path / "heart"}, "the next one has not begun"
    found = LoadedStudy(tmp_path / "heart")
    results = {each.configuration: each for each in results_of("heart", found, 3)}
    assert list(results) == [
        *("Local", "two local models mixed", "Local, repeated", "majority class"),
        *("FedAvg", "FedAvg (finetune) + ConFREE"),
    ]
    cell = found.cells[1]
    assert cell.mean_gain is not None
    assert results["FedAvg"].gain == cell.mean_gain.mean
    assert results["FedAvg"].low == cell.mean_gain.low
    assert results["FedAvg"].worse == len(cell.with_state("worse"))
    assert results["FedAvg"].clients == results["two local models mixed"].clients == 4
    assert results["majority class"].value - results["Local"].value == pytest.approx(results["majority class"].gain)
    assert results_of("heart", found, 4) == [], "fewer seeds than asked for"
    clients = clients_of("heart", found)
    assert clients is not None
    assert clients.configurations["FedAvg"].keys() == {str(row) for row in cell.clients}
    assert benchmark_clients_csv([clients]).count("\n") == 1 + 2 * 4
    with pytest.raises(ComityError, match="holds no benchmark"):
        benchmark_studies(tmp_path / "heart" / "runs")
