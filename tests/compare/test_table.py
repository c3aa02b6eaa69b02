"""The table's numbers against numbers worked out by hand, and its forms."""

import csv
import io
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from comity import ComityError
from comity.__main__ import main
from comity.compare import LoadedStudy, Table, Varying, in_words
from comity.config import Config
from comity.results import PlannedRun, StudyFolder, flatten
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


def test_an_arrow_only_where_the_interval_leaves_zero_out(tmp_path: Path) -> None:
    def entry(numbers: Sequence[float]) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for seed, base in enumerate((0.8, 0.84, 0.7)):
            make(folder / f"m{seed}", [base], seed=seed, thorough=False)
        for seed, number in enumerate(numbers):
            make(folder / f"r{seed}", [number], seed=seed, rule="ConFREE", thorough=False)
        (line,) = (line for line in table(folder).lines if line.rule == "ConFREE")
        return str(line.entries["difference"])

    assert entry([0.82, 0.861, 0.719]) == "↑ 2.00 [1.75, 2.25]"
    assert entry([0.78, 0.819, 0.681]) == "↓ 2.00 [−2.25, −1.75]"
    assert entry([0.8, 0.84, 0.7]) == "≈ 0.00 [0.00, 0.00]"
    assert entry([0.81]) == "+1.00 (one seed)"
    assert entry([0.79]) == "−1.00 (one seed)"


def test_markdown_reads_back(runs: Path) -> None:
    text = table(runs).markdown()
    rows = rows_of(text)
    assert rows[0] == [
        *("", "accuracy", "difference to Mean", "clients that gain", "clients harmed", "worst tenth"),
        *("relative to Local", "conflict", "MB a round", "s a round"),
    ]
    assert set(rows[1][1:]) == {"---:"}
    assert [row[0] for row in rows[2:]] == ["Local", "FedRep", "+ CALM", "+ ConFREE"]
    # mean of 80, 84, 70; deviations 2, 6, -8: sqrt((4 + 36 + 64) / 2) = 7.21
    assert rows[2] == ["Local", "50.00 ± 0.00", "–", "–", "–", "50.0 ± 0.0", "–", "–", "0.00", "0.75"]
    # the worst client has 62, 66 and 52 %: it gains in every seed, and so do all; relative to 50 %: 60, 68 and 40 %
    assert rows[3] == [
        *("FedRep", "78.00 ± 7.21", "–", "30 of 30", "0 of 30", "60.0 ± 7.2", "56.0 ± 14.4", "30", "1.50", "0.75")
    ]
    assert rows[5][:3] == ["+ ConFREE", "80.00 ± 6.56", "≈ 2.00 [−0.48, 4.48]"]
    assert "3 seeds (0, 1, 2)" in text
    assert all(column.meaning for column in table(runs).columns)
    assert "trainers" not in text


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
    assert "80.00 $\\pm$ 6.56 & $\\approx$ 2.00 [$-$0.48, 4.48]" in text
    assert not re.search(r"[^\x00-\x7f]", "".join(lines))


def test_one_seed_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a", 0.8, seed=4)
    write(tmp_path / "b", 0.83, rule="ConFREE", seed=4)
    text = table(tmp_path).markdown()
    assert "One seed (4): no standard deviation and no interval" in text
    assert "±" not in text
    assert "| + ConFREE | 83.00 | +3.00 (one seed) |" in text


def test_options_of_a_rule_make_lines_and_settings_make_blocks(tmp_path: Path) -> None:
    for i, alpha in enumerate((0.1, 1.0)):
        setting = {"partition.alpha": alpha}
        write(tmp_path / f"{i}mean", 0.8, options=setting)
        for c in (0.3, 0.6):
            write(tmp_path / f"{i}rule{c}", 0.8 + c / 10, rule="ConFREE", options=setting | {"rule.c": c})
    made = table(tmp_path)
    assert [block.title for block in made.blocks] == ["alpha=0.1", "alpha=1.0"]
    for block in made.blocks:
        names = [line.name for line in block.lines if not line.local]
        assert names == ["FedRep", "+ ConFREE (c=0.3)", "+ ConFREE (c=0.6)"]
        values = [line.entries["difference"].value for line in block.lines if not line.local]
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
    assert main(["table", str(tmp_path)]) == 2
    assert "no run is finished yet" in capsys.readouterr().err


def test_the_best_round_only_where_validation_chose_it(tmp_path: Path) -> None:
    write(tmp_path / "a", 0.8, validation=0.7, alone=None)
    write(tmp_path / "b", 0.8, options={"lr": 0.3}, alone=None)
    assert "best round" not in table(tmp_path / "b").markdown()
    assert "| FedRep | 80.00 | 80.00 |" in table(tmp_path / "a").markdown()
    assert "| FedRep | 80.00 | – |" in table(tmp_path).markdown()


def test_columns_are_chosen(runs: Path) -> None:
    made = table(runs)
    assert "G-acc" not in made.markdown()
    assert float(csv_of(made)[0]["G-acc"]) == pytest.approx(30)
    rows = rows_of(made.only(["G-acc", "MB"]).markdown())
    assert rows[0] == ["", "accuracy", "difference to Mean", "G-acc", "MB a round"]
    assert rows[2] == ["Local", "50.00 ± 0.00", "–", "30.00 ± 0.00", "0.00"]
    with pytest.raises(ComityError, match="unknown column 'harm'; did you mean harmed"):
        made.only(["harm"])


def test_harm_beyond_chance_is_told_on_80_columns(tmp_path: Path) -> None:
    for seed in range(3):
        accuracy, only = [0.1, 0.4, *[0.6] * 8], ([12, 2, *[0] * 8], [0] * 10)
        make(tmp_path / f"{seed}", accuracy, alone=ALONE, seed=seed, same_partition=True, only=only)
        make(tmp_path / f"r{seed}", accuracy, alone=ALONE, seed=seed, rule="CALM", same_partition=True)
    made = table(tmp_path)
    assert re.search(r"FedRep +53\.00 ± 0\.00 .* 2 of 10, 1 beyond chance", on_terminal(made, width=80))
    assert "2 of 10, 1 beyond chance" in made.latex()
    _, mean, calm = csv_of(made)
    assert [mean[f"harmed{part}"] for part in ("", " of", " beyond chance")] == ["2", "10", "1"]
    assert [calm[f"harmed{part}"] for part in ("", " of", " beyond chance")] == ["2", "10", ""]
    assert [line.entries["harmed"].mark for line in made.lines[1:]] == ["loss", "loss"]


def test_which_local_is_the_reference(tmp_path: Path) -> None:
    for i, (local_on, share) in enumerate((("all", 0.2), ("train", 0.2), ("train", 0.0))):
        write(tmp_path / f"{i}", 0.8, options={"local_on": local_on, "val_share": share})
    everything = "Local, the reference, learns from all samples of a client but its tests"
    assert f"{everything}." in table(tmp_path / "0").reference
    assert "Local, the reference, learns from no validation samples either." in table(tmp_path / "1").reference
    assert f"{everything}." in table(tmp_path / "2").notes  # there are none to leave out
    assert f"{everything} (2 of 3 settings)." in table(tmp_path).notes
    write(tmp_path / "3", 0.8, alone=None)
    assert table(tmp_path / "3").reference == []


def test_losses_calibration_and_the_model_without_its_guard(tmp_path: Path) -> None:
    write(tmp_path / "a", 0.8, metrics_too={"ECE": 0.12, "unguarded": 0.7})
    row = csv_of(table(tmp_path))[-1]
    shown = [float(row[name]) for name in ("log-loss", "ECE", "unguarded", "against")]
    assert shown == pytest.approx([0.2, 12, 70, 25])
    assert "unguarded" in table(tmp_path).markdown()
    assert {"log-loss", "ECE", "against"} <= {column.name for column in table(tmp_path).on_page}


@pytest.mark.parametrize("width", [60, 100, 220])
def test_on_a_terminal(runs: Path, width: int) -> None:
    """Long names are broken, and the last columns left out, rather than a number cut off."""
    write(runs / "long", 0.9, method="AMethodWithAnExtraordinarilyLongName" * 2)
    out = on_terminal(table(runs), width=width)
    assert max(map(len, out.splitlines())) <= width
    assert "78.00 ± 7.21" in out
    assert "≈ 2.00 [−0.48, 4.48]" in out
    assert "0 of 30" in out  # however narrow: nobody shall miss who is harmed
    assert ("Too narrow for:" in out) == (width < 220)
    assert "…" not in out


def test_a_gain_inside_the_noise_is_dimmed(runs: Path) -> None:
    for seed in range(3):
        write(runs / f"sure{seed}", (0.90, 0.94, 0.80)[seed], rule="MGDA", seed=seed)
    out = on_terminal(table(runs), width=200, force_terminal=True, color_system="standard")
    assert re.search(r"\x1b\[2m *≈ 2\.00 \[−0\.48, 4\.48\]", out)
    assert re.search(r"\x1b\[32m *↑ 10\.00 \[10\.00, 10\.00\]", out)


def test_a_table_needs_no_torch(runs: Path) -> None:
    code = "import sys; from comity.__main__ import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    arguments = ["table", str(runs), "--format", "md"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "+ ConFREE" in done.stdout


def test_a_base_from_the_command_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", str(runs), "--format", "md", "--base", "ConFREE"]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert rows[0][2] == "difference to ConFREE"
    assert [row[0] for row in rows[2:]] == ["Local", "FedRep + ConFREE", "+ CALM", "+ Mean"]
    assert rows[-1][2] == "≈ −2.00 [−4.48, 0.48]"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "comity table needs FOLDERS"),
        (["nowhere"], "nowhere does not exist; give run or study folders"),
        (["RUNS", "--format", "pdf"], "--format must be terminal"),
        (["RUNS", "--from", "md"], "unknown option '--from'; did you mean --format"),
        (["RUNS", "--base", "Confree"], "unknown base 'Confree'; did you mean ConFREE"),
    ],
)
def test_bad_input_is_one_line(runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert main(["table", *(str(runs) if argument == "RUNS" else argument for argument in arguments)]) == 2
    out, err = capsys.readouterr()
    assert (out, told in err, err.count("\n")) == ("", True, 1)
