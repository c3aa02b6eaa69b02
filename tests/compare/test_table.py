"""The table's numbers against numbers worked out by hand, and its forms."""

import csv
import dataclasses
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from comity import ComityError
from comity.__main__ import main
from comity.compare import ClientRow, ClientTable, LoadedStudy, Table, Varying, in_words
from comity.compare.table import ALWAYS_SHOWN, MOST_COLUMNS
from comity.config import Config
from comity.metrics import DECIDING, OWN
from comity.results import LoadedRun, Newcomers, PlannedRun, RunFolder, StudyFolder, flatten
from helpers import rejected
from run_folders import make

ALONE = [0.5] * 10


def write(folder: Path, accuracy: float, **more: Any) -> Path:
    """A finished run: the first of its ten clients does 20 points worse than the others, which all gain."""
    clients = [accuracy - 0.18] + [accuracy + 0.02] * 9
    return make(folder, clients, **{"alone": ALONE} | more)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three seeds. ConFREE is better in every seed, by 1, 2 and 3 points; CALM by 5, 0 and -4."""
    for seed, accuracy in enumerate((0.80, 0.84, 0.70)):
        make(tmp_path / f"local{seed}", ALONE, method="Local", seed=seed)
        write(tmp_path / f"mean{seed}", accuracy, seed=seed)
        write(tmp_path / f"confree{seed}", accuracy + (1 + seed) / 100, rule="ConFREE", seed=seed)
        write(tmp_path / f"calm{seed}", accuracy + (0.05, 0, -0.04)[seed], rule="CALM", seed=seed)
    return tmp_path


def table(*paths: Path) -> Table:
    return LoadedStudy(*paths).table()


def rows_of(markdown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in markdown.splitlines() if line.startswith("|")]


def on_terminal(table: Table, **options: Any) -> str:
    console = Console(file=io.StringIO(), **options)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def csv_of(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.csv())))


def test_a_mark_only_where_the_interval_leaves_zero_out(tmp_path: Path) -> None:
    def entry(numbers: Sequence[float]) -> tuple[str, str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for seed, base in enumerate((0.8, 0.84, 0.7)):
            make(folder / f"m{seed}", [base], seed=seed, thorough=False)
        for seed, number in enumerate(numbers):
            make(folder / f"r{seed}", [number], seed=seed, rule="ConFREE", thorough=False)
        (line,) = (line for line in table(folder).rows if line.rule == "ConFREE")
        return str(line.entries["difference"]), line.entries["difference"].mark

    assert entry([0.82, 0.861, 0.719]) == ("+2.00 [1.75, 2.25]", "gain")
    assert entry([0.78, 0.819, 0.681]) == ("−2.00 [−2.25, −1.75]", "loss")
    assert entry([0.8, 0.84, 0.7]) == ("0.00 [0.00, 0.00]", "noise")
    assert entry([0.81]) == ("+1.00 (no interval)", "unknown")
    assert entry([0.79]) == ("−1.00 (no interval)", "unknown")


def test_markdown_reads_back(runs: Path) -> None:
    text = table(runs).markdown()
    rows = rows_of(text)
    assert rows[0] == [
        *("", "accuracy", "gain over local training", "worse / undecided / not worse", "difference to Mean"),
        "worst tenth",
    ]
    assert set(rows[1][1:]) == {"---:"}
    assert [row[0] for row in rows[2:]] == ["Local", "FedRep", "+ CALM", "+ ConFREE"]
    # mean of 80, 84, 70; deviations 2, 6, -8: sqrt((4 + 36 + 64) / 2) = 7.21
    assert rows[2] == ["Local", "50.00 ± 0.00", "–", "–", "–", "50.0 ± 0.0"]
    # the worst client has 62, 66 and 52 %
    assert [rows[3][place] for place in (0, 1, 4, 5)] == ["FedRep", "78.00 ± 7.21", "–", "60.0 ± 7.2"]
    assert rows[3][2].startswith("+28.00 [")
    assert rows[5][:2] == ["+ ConFREE", "80.00 ± 6.56"]
    assert rows[5][4] == "+2.00 [−0.48, 4.48]"
    assert text.count("3 seeds. The metric that decides is accuracy") == 1
    assert "not worse if its interval rules out a loss of more than 2 points" in text
    assert all(column.meaning for column in table(runs).columns)
    assert "trainers" not in text


def test_at_most_seven_columns_unless_more_are_asked_for(runs: Path) -> None:
    made = table(runs)
    every = made.only([column.name for column in made.columns])
    assert len(every.shown) > MOST_COLUMNS
    result = RunFolder(runs / "mean0").result()
    late = Newcomers(clients={}, metrics=result.last.metrics, transfer=None, failed={})
    RunFolder(runs / "mean0").add_result(structs.replace(result, newcomers=late))
    for metric in DECIDING:
        folder = runs.with_name(f"of {metric}")
        for run in runs.iterdir():
            shutil.copytree(run, folder / run.name)
            config = folder / run.name / "config.yaml"
            config.write_text(config.read_text() + f"metric: {metric}\n")
        made = table(folder)
        assert 1 + len(made.shown) <= MOST_COLUMNS
        assert "newcomers" in [column.name for column in made.columns]
        if metric in ("accuracy", "log-loss"):  # of the others these runs have no number
            assert made.shown[0].heading == DECIDING[metric].label


def test_trainers_that_differ_are_told(tmp_path: Path) -> None:
    for seed, trainer in enumerate(("autograd", "compiled AVX512", "")):
        make(tmp_path / f"{seed}", ALONE, seed=seed, info={"trainer": trainer})
    told = "Runs used different trainers: autograd, compiled AVX512; last digits may differ."
    assert table(tmp_path).remarks == [told]
    assert table(tmp_path / "0", tmp_path / "2").remarks == []  # of earlier runs it is not known


def test_latex_is_a_whole_tabular(runs: Path) -> None:
    write(runs / "odd", 0.9, options={"data": {"name": "a_b & 100 %"}})
    text = table(runs).latex()
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    columns = len(re.fullmatch(r"\\begin\{tabular\}\{(l(r+))\}", lines[0]).group(1))  # type: ignore[union-attr]
    assert lines[1] == "\\toprule"
    assert lines[-2:] == ["\\bottomrule", "\\end{tabular}"]
    assert text.count("\\midrule") == 2
    assert text.count(f"\\multicolumn{{{columns}}}{{l}}{{") == 2
    for line in lines[2:-2]:
        if "multicolumn" not in line and line != "\\midrule":
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
            assert line.endswith(" \\\\")
        assert line.count("{") == line.count("}")
        assert len(re.findall(r"(?<!\\)\$", line)) % 2 == 0
    assert "a\\_b \\& 100 \\%" in text
    assert "80.00 $\\pm$ 6.56 & +30.00 [" in text
    assert "& +2.00 [$-$0.48, 4.48] &" in text
    assert not re.search(r"[^\x00-\x7f]", "".join(lines))


def test_one_seed_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a", 0.8, seed=4)
    write(tmp_path / "b", 0.83, rule="ConFREE", seed=4)
    text = table(tmp_path).markdown()
    assert "One seed (4). The metric that decides is accuracy" in text
    assert "±" not in text
    assert "| +3.00 (no interval) |" in text


def test_options_of_a_rule_make_lines_and_settings_make_blocks(tmp_path: Path) -> None:
    for i, alpha in enumerate((0.1, 1.0)):
        setting = {"partition.alpha": alpha}
        write(tmp_path / f"{i}mean", 0.8, options=setting)
        for c in (0.3, 0.6):
            write(tmp_path / f"{i}rule{c}", 0.8 + c / 10, rule="ConFREE", options=setting | {"rule.c": c})
    made = table(tmp_path)
    assert [block.title for block in made.blocks] == ["alpha=0.1", "alpha=1.0"]
    for block in made.blocks:
        names = [line.name for line in block.rows if not line.local]
        assert names == ["FedRep", "+ ConFREE (c=0.3)", "+ ConFREE (c=0.6)"]
        values = [line.entries["difference"].value for line in block.rows if not line.local]
        assert [value and round(value, 9) for value in values] == [None, 3.0, 6.0]
    assert "**alpha=1.0**" in made.markdown()
    rows = [row for row in csv_of(made) if row["method"] != "Local"]
    assert [row["partition.alpha"] for row in rows] == ["0.1"] * 3 + ["1.0"] * 3
    assert [row["rule.c"] for row in rows] == ["", "0.3", "0.6"] * 2


def test_options_of_different_rules_do_not_vary() -> None:
    """ConFREE and CALM both have an option ``scope``, with other defaults: that is no difference to tell."""
    flats = [flatten(Config(rule=rule).plain()) for rule in ("ConFREE", "CALM", "Mean")]
    varying = Varying(flats)
    assert [varying.of(flat, "rule") for flat in flats] == [{}, {}, {}]
    assert varying.of(flats[0]) == {}
    more = [*flats, flatten(Config(rule={"name": "CALM", "C": 7}).plain() | {"seed": 3, "workers": 9})]
    assert Varying(more).of(more[-1], "rule") == {"rule.C": 7.0}
    assert Varying(more).label(more[-1], "rule") == "CALM (C=7.0)"
    assert Varying(more).keys == ["rule.C"]
    assert in_words({"data": "digits", "partition": None, "model.widths": [8, 4]}) == "digits, default, widths=8×4"


def test_what_is_missing_is_told(runs: Path) -> None:
    (runs / "confree0" / "result.json").unlink()
    planned = [PlannedRun(folder=path.name, title=path.name) for path in sorted(runs.iterdir())]
    planned += [PlannedRun(folder=f"later{i}", title="later") for i in range(3)]
    StudyFolder(runs).write_planned(planned)
    text = table(runs).markdown()
    assert "| + ConFREE (2 of 3 seeds) |" in text
    assert "4 of 15 runs are not finished and not in the table." in text


def test_nothing_finished_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", 0.8, done=2)
    assert table(tmp_path).blocks == []
    assert "no run is finished yet" in rejected(capsys, "table", str(tmp_path))


def test_the_best_round_only_where_validation_chose_it(tmp_path: Path) -> None:
    write(tmp_path / "a", 0.8, validation=0.7, alone=None)
    write(tmp_path / "b", 0.8, options={"lr": 0.3}, alone=None)
    assert "best round" not in table(tmp_path).markdown()  # unless it is asked for
    assert "best" not in [column.name for column in table(tmp_path / "b").columns]
    made = table(tmp_path).only(["best"])
    assert [str(line.entries["best"]) for line in made.rows] == ["80.00", "–"]


def test_the_largest_accuracy_over_rounds_is_marked_as_optimistic(tmp_path: Path) -> None:
    write(tmp_path / "a", 0.8, alone=None)
    (line,) = table(tmp_path).only(["accuracy", "peak"]).rows
    judged = [100 * each.metrics[OWN.key].mean for each in LoadedRun(tmp_path / "a").records if OWN.key in each.metrics]
    assert line.entries["peak"].value == max(judged)
    assert "optimistic" in table(tmp_path).only(["peak"]).markdown()


def test_columns_are_chosen(runs: Path) -> None:
    made = table(runs)
    assert "G-acc" not in made.markdown()
    assert float(csv_of(made)[0]["G-acc"]) == pytest.approx(30)
    rows = rows_of(made.only(["G-acc", "MB"]).markdown())
    assert rows[0] == ["", "accuracy", "gain over local training", "G-acc", "MB per round"]
    assert rows[2] == ["Local", "50.00 ± 0.00", "–", "30.00 ± 0.00", "0.00"]
    with pytest.raises(ComityError, match="unknown column 'worst'; did you mean worst10"):
        made.only(["worst"])


def test_who_is_worse_is_told_on_80_columns(tmp_path: Path) -> None:
    for seed in range(3):
        accuracy, only = [0.1, 0.4, *[0.6] * 8], ([16, 2, *[0] * 8], [0, 0, *[2] * 8])
        make(tmp_path / f"{seed}", accuracy, alone=[0.9, *ALONE[1:]], seed=seed, same_partition=True, only=only)
        make(tmp_path / f"r{seed}", accuracy, seed=seed, rule="CALM", same_partition=True)
    made = table(tmp_path)
    mean, calm = csv_of(made)
    counts = [mean[f"worse{part}"] for part in ("", " undecided", " not worse", " of")]
    assert counts == ["1", "9", "0", "10"]
    assert [calm[f"worse{part}"] for part in ("", " of")] == ["", ""]
    assert re.search(r"FedRep +53\.00 ± 0\.00 .* 1 / 9 / 0", on_terminal(made, width=80))
    assert "1 / 9 / 0" in made.latex()
    assert [line.entries["worse"].mark for line in made.rows] == ["loss", ""]
    assert made.rows[0].entries["worse"].title == "worse: 0"


def test_which_local_is_the_reference(tmp_path: Path) -> None:
    for i, (local_on, share) in enumerate((("all", 0.2), ("train", 0.2), ("train", 0.0))):
        write(tmp_path / f"{i}", 0.8, options={"local_on": local_on, "val_share": share})
    everything = "Local training, the baseline, uses all samples of a client except its tests"
    assert f"{everything}." in table(tmp_path / "0").reference
    assert (
        "Local training, the baseline, uses all except tests and validation samples." in table(tmp_path / "1").reference
    )
    assert f"{everything}." in table(tmp_path / "2").notes  # there are none to leave out
    assert f"{everything} (2 of 3 settings)." in table(tmp_path).notes
    write(tmp_path / "3", 0.8, alone=None)
    assert table(tmp_path / "3").reference == []


def test_losses_calibration_and_the_model_without_its_guard(tmp_path: Path) -> None:
    write(tmp_path / "a", 0.8, metrics_too={"ECE": 0.12, "unguarded": 0.7})
    row = csv_of(table(tmp_path))[-1]
    shown = [float(row[name]) for name in ("log-loss", "ECE", "unguarded", "against")]
    assert shown == pytest.approx([0.2, 12, 70, 25])


@pytest.mark.parametrize("metric", ["accuracy", "log-loss"])
@pytest.mark.parametrize("width", [60, 80, 220])
def test_on_a_terminal(runs: Path, width: int, metric: str) -> None:
    """Names are wrapped, and the last columns left out, rather than a number cut off or the metric left out."""
    for run in runs.iterdir():
        with (run / "config.yaml").open("a") as config:
            config.write(f"metric: {metric}\n")
    made = table(runs)
    out = on_terminal(made, width=width)
    assert max(map(len, out.splitlines())) <= width
    words = out.split()
    for line in made.rows:
        for column in (made.shown[0], *(column for column in made.shown if column.name in ALWAYS_SHOWN)):
            assert str(line.entries[column.name]) in out
        if width >= 80:
            assert set(line.name.split()) <= set(words)
    assert made.shown[0].heading == DECIDING[metric].label
    assert set(made.shown[0].heading.split()) <= set(words)
    assert ("Hidden, because the terminal is too narrow:" in " ".join(out.split())) == (width < 220)
    assert "…" not in out


def test_long_names_are_broken_rather_than_numbers(runs: Path) -> None:
    write(runs / "long", 0.9, method="AMethodWithAnExtraordinarilyLongName" * 2)
    out = on_terminal(table(runs), width=60)
    assert max(map(len, out.splitlines())) <= 60
    assert "78.00 ± 7.21" in out
    assert "…" not in out


@pytest.mark.parametrize("metric", ["accuracy", "log-loss"])
def test_one_row_per_client_on_80_columns(runs: Path, metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["Bosnia and Herzegovina", "Switzerland", "Netherlands"]
    row = ClientRow(0, None, "", 1200, 500, 0.7, 0.8, -0.1, -0.25, 0.05, "undecided", 0.31, constant=False)
    rows = [*(dataclasses.replace(row, name=name) for name in names), dataclasses.replace(row, client=12, seed=3)]
    drawn = ClientTable("FedRep", rows, DECIDING[metric])
    console = Console(file=io.StringIO(), width=80)
    console.print(drawn)
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, out.splitlines())) <= 80
    for each in rows:
        assert set(" ".join(drawn.texts(each)).split()) <= set(out.split())
    assert main(["table", str(runs), "--by", "client", "--format", "csv"]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(found) == 3 * 30  # ten clients in each of three seeds
    assert {each["configuration"] for each in found} == {"FedRep + Mean", "FedRep + ConFREE", "FedRep + CALM"}


def test_a_gain_inside_the_noise_is_dimmed(runs: Path) -> None:
    for seed in range(3):
        write(runs / f"sure{seed}", (0.90, 0.94, 0.80)[seed], rule="MGDA", seed=seed)
    out = on_terminal(table(runs), width=200, force_terminal=True, color_system="standard")
    assert re.search(r"\x1b\[2m *\+2\.00 \[−0\.48, 4\.48\]", out)
    assert re.search(r"\x1b\[32m *\+10\.00 \[10\.00, 10\.00\]", out)


def test_a_table_needs_no_torch(runs: Path) -> None:
    code = "import sys; from comity.__main__ import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    arguments = ["table", str(runs), "--format", "md"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "+ ConFREE" in done.stdout


def test_a_base_from_the_command_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", str(runs), "--format", "md", "--base", "ConFREE"]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert rows[0][4] == "difference to ConFREE"
    assert [row[0] for row in rows[2:]] == ["Local", "FedRep + ConFREE", "+ CALM", "+ Mean"]
    assert rows[-1][4] == "−2.00 [−4.48, 0.48]"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "FOLDERS is missing"),
        (["nowhere"], "nowhere does not exist; give run or study folders"),
        (["RUNS", "--format", "pdf"], "--format must be terminal"),
        (["RUNS", "--from", "md"], "unknown option '--from'; did you mean --format"),
        (["RUNS", "--base", "Confree"], "unknown base 'Confree'; did you mean ConFREE"),
    ],
)
def test_bad_input_is_one_line(runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert told in rejected(capsys, "table", *(str(runs) if argument == "RUNS" else argument for argument in arguments))
