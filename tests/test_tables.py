"""The table's numbers against numbers worked out by hand, and its four forms."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from comity import ComityError
from comity.config import Config
from comity.loading import LoadedRun
from comity.tables import ACCURACY, Gain, Spread, Table, Varying, flatten, told


def write(folder: Path, accuracy: float, *, harmed: int | None = 1, val: bool = False, **options: Any) -> LoadedRun:
    """A finished run that never ran."""
    config = Config(**options)
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config.plain()))
    last = {"round": 10, "eval/L-acc/mean": accuracy, "eval/L-acc/worst10": accuracy - 0.2, "eval/G-acc/mean": 0.625}
    best = last | {"eval/L-acc/mean": accuracy + 0.01, "chosen by": "validation" if val else "test: do not compare"}
    result = {
        "title": "Local" if config.method.name == "Local" else f"{config.method} + {config.rule}",
        "last": last,
        "best": best,
        "conflict-rate": None if config.method.name == "Local" else 0.25,
        "bytes a round": {"down": 1.5e6, "up": 0.5e6},
        "seconds": {"train": 3.0, "aggregate": 2.0, "evaluate": 100.0},
    }
    if harmed is not None and config.method.name != "Local":
        result["transfer"] = {"relative-accuracy": 0.125, "positive-transfer": 0.75, "harmed": list(range(harmed))}
    (folder / "result.json").write_text(json.dumps(result))
    return LoadedRun(folder)


OTHER = {"name": "ConFREE", "c": 0.3}


@pytest.fixture
def runs(tmp_path: Path) -> list[LoadedRun]:
    """Three seeds. ConFREE is better in every seed, by 1, 2 and 3 points; CALM by 5, 0 and -4."""
    found = []
    for seed, accuracy in enumerate((0.80, 0.84, 0.70)):
        found += [
            write(tmp_path / f"local{seed}", 0.5, method="Local", seed=seed),
            write(tmp_path / f"mean{seed}", accuracy, method="FedRep", seed=seed, harmed=seed),
            write(tmp_path / f"confree{seed}", accuracy + (1 + seed) / 100, method="FedRep", rule=OTHER, seed=seed),
            write(tmp_path / f"calm{seed}", accuracy + (0.05, 0, -0.04)[seed], method="FedRep", rule="CALM", seed=seed),
        ]
    return found


def test_the_numbers(runs: list[LoadedRun]) -> None:
    (block,) = Table.of(runs).blocks
    local, mean, confree, calm = block.lines
    assert [line.label for line in block.lines] == ["Local", "FedRep", "+ ConFREE", "+ CALM"]
    accuracy = mean.spread(ACCURACY)
    assert accuracy is not None
    # mean of 80, 84, 70; deviations 2, 6, -8: sqrt((4 + 36 + 64) / 2)
    assert accuracy.mean == pytest.approx(78)
    assert accuracy.std == pytest.approx(52**0.5)
    assert local.gain is None
    assert mean.gain is None
    # differences 1, 2, 3: mean 2, deviation 1, t(2) = 4.302653
    assert confree.gain is not None
    assert confree.gain.mean == pytest.approx(2)
    assert confree.gain.low == pytest.approx(2 - 4.302653 / 3**0.5, abs=1e-6)
    assert confree.gain.high == pytest.approx(2 + 4.302653 / 3**0.5, abs=1e-6)
    assert str(confree.gain) == "≈ 2.00 [-0.48, 4.48]"
    assert calm.gain is not None
    assert calm.gain.mark == "≈"


def test_an_arrow_only_where_the_interval_leaves_zero_out() -> None:
    base = Spread({0: 80.0, 1: 84.0, 2: 70.0})
    sure = Gain.of(Spread({0: 82.0, 1: 86.1, 2: 71.9}), base)
    assert str(sure) == "↑ 2.00 [1.75, 2.25]"
    worse = Gain.of(Spread({0: 78.0, 1: 81.9, 2: 68.1}), base)
    assert str(worse) == "↓ 2.00 [-2.25, -1.75]"
    # the seeds spread much wider than that: without pairing it would drown in them
    assert base.std is not None
    assert base.std > 7
    assert str(Gain.of(base, base)) == "≈ 0.00 [0.00, 0.00]"
    assert str(Gain.of(Spread({1: 85.0, 9: 1.0}), base)) == "↑ 1.00"  # one seed in common
    assert Gain.of(Spread({9: 1.0}), base) is None


def test_markdown_reads_back(runs: list[LoadedRun]) -> None:
    text = Table.of(runs).markdown()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == [
        *("", "accuracy", "difference to Mean", "worst 10 %", "relative to Local", "positive transfer"),
        *("clients harmed", "conflict", "MB a round", "s a round"),
    ]
    assert set(rows[1][1:]) == {"---:"}
    assert rows[2] == ["Local", "50.00 ± 0.00", "", "30.0 ± 0.0", "–", "–", "–", "–", "2.00", "0.50"]
    assert rows[3] == ["FedRep", "78.00 ± 7.21", "", "58.0 ± 7.2", "12.5 ± 0.0", "75", "1", "25", "2.00", "0.50"]
    assert rows[4][:3] == ["+ ConFREE", "80.00 ± 6.56", "≈ 2.00 [-0.48, 4.48]"]
    assert "3 seeds (0, 1, 2)" in text


def test_csv_reads_back_in_full_precision(runs: list[LoadedRun]) -> None:
    rows = list(csv.DictReader(io.StringIO(Table.of(runs).csv())))
    assert [(row["method"], row["rule"]) for row in rows] == [
        *(("Local", ""), ("FedRep", "Mean"), ("FedRep", "ConFREE"), ("FedRep", "CALM"))
    ]
    assert {row["seeds"] for row in rows} == {"0 1 2"}
    assert float(rows[1]["accuracy std"]) == pytest.approx(52**0.5, abs=1e-12)
    assert float(rows[1]["harmed"]) == 1
    assert float(rows[1]["harmed std"]) == 1
    assert float(rows[2]["low"]) == pytest.approx(2 - 4.30265272991 / 3**0.5, abs=1e-9)
    assert rows[2]["mark"] == "≈"
    assert rows[0]["relative"] == rows[0]["difference"] == ""


def test_latex_is_a_whole_tabular(runs: list[LoadedRun], tmp_path: Path) -> None:
    odd = write(tmp_path / "odd", 0.9, method="FedRep", data="a_b & 100 %", seed=0)
    text = Table.of([*runs, odd]).latex()
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    columns = len(re.fullmatch(r"\\begin\{tabular\}\{(l(r+))\}", lines[0]).group(1))  # type: ignore[union-attr]
    assert lines[1] == "\\toprule"
    assert lines[-2:] == ["\\bottomrule", "\\end{tabular}"]
    assert text.count("\\midrule") == 2
    for line in lines[2:-2]:
        if "multicolumn" in line:
            assert line.startswith(f"\\multicolumn{{{columns}}}{{l}}{{")
        elif line != "\\midrule":
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
            assert line.endswith(" \\\\")
        assert line.count("{") == line.count("}")
        assert len(re.findall(r"(?<!\\)\$", line)) % 2 == 0
    assert "a\\_b \\& 100 \\%" in text
    assert "80.00 $\\pm$ 6.56 & $\\approx$ 2.00 [$-$0.48, 4.48]" in text
    assert not re.search(r"[^\x00-\x7f]", "".join(lines))


def test_one_seed_says_so(tmp_path: Path) -> None:
    one = write(tmp_path / "a", 0.8, seed=4), write(tmp_path / "b", 0.83, rule="ConFREE", seed=4)
    text = Table.of(one).markdown()
    assert "One seed (4): no standard deviation and no interval" in text
    assert "±" not in text
    assert "| + ConFREE | 83.00 | ↑ 3.00 |" in text


def test_options_of_a_rule_make_lines_and_settings_make_blocks(tmp_path: Path) -> None:
    runs = []
    for i, alpha in enumerate((0.1, 1.0)):
        partition = {"name": "dirichlet", "alpha": alpha}
        runs.append(write(tmp_path / f"mean{i}", 0.8, partition=partition))
        for c in (0.3, 0.6):
            rule = {"name": "ConFREE", "c": c}
            runs.append(write(tmp_path / f"confree{i}{c}", 0.8 + c / 10, partition=partition, rule=rule))
    table = Table.of(runs)
    assert [block.title for block in table.blocks] == ["alpha=0.1", "alpha=1.0"]
    for block in table.blocks:
        assert [line.label for line in block.lines] == ["FedAvg", "+ ConFREE (c=0.3)", "+ ConFREE (c=0.6)"]
        assert [line.gain and round(line.gain.mean, 9) for line in block.lines] == [None, 3.0, 6.0]
    assert "**alpha=1.0**" in table.markdown()
    rows = list(csv.DictReader(io.StringIO(table.csv())))
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
    assert told({"data": "digits", "partition": None, "model.widths": [8, 4]}) == "digits, default, widths=8×4"


def test_what_is_missing_is_told(runs: list[LoadedRun]) -> None:
    (runs[2].path / "result.json").unlink()
    text = Table.of([LoadedRun(run.path) for run in runs], planned=15).markdown()
    assert "| + ConFREE (2 of 3 seeds) |" in text
    assert "4 runs are not finished and not in this table." in text
    assert Table.of([]).blocks == []


def test_the_best_round_only_where_validation_chose_it(tmp_path: Path) -> None:
    chosen, peeked = write(tmp_path / "a", 0.8, val=True), write(tmp_path / "b", 0.8, lr=0.3)
    assert "best round" not in Table.of([peeked]).markdown()
    assert "| FedAvg | 80.00 |  | 81.00 |" in Table.of([chosen]).markdown()
    assert "| FedAvg | 80.00 |  | – |" in Table.of([chosen, peeked]).markdown()


def test_columns_are_chosen(runs: list[LoadedRun]) -> None:
    table = Table.of(runs)
    assert "G-acc" not in table.markdown()
    assert {row["G-acc"] for row in csv.DictReader(io.StringIO(table.csv()))} == {"62.5"}
    first = table.only(["G-acc", "MB"]).markdown().splitlines()
    assert first[0] == "|  | accuracy | difference to Mean | G-acc | MB a round |"
    assert first[2] == "| Local | 50.00 ± 0.00 |  | 62.50 ± 0.00 | 2.00 |"
    with pytest.raises(ComityError, match="unknown column 'harm'; did you mean harmed"):
        table.only(["harm"])


@pytest.mark.parametrize("width", [60, 100, 200])
def test_on_a_terminal(runs: list[LoadedRun], width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(Table.of(runs))
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, out.splitlines())) <= width
    assert "78.00 ± 7.21" in out
    assert "≈ 2.00 [-0.48, 4.48]" in out
    assert ("Too narrow for:" in out) == (width < 200)
    assert "…" not in out


def test_a_gain_inside_the_noise_is_dimmed(runs: list[LoadedRun], tmp_path: Path) -> None:
    for seed in range(3):
        runs.append(write(tmp_path / f"sure{seed}", (0.90, 0.94, 0.80)[seed], method="FedRep", rule="MGDA", seed=seed))
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    console.print(Table.of(runs))
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"\x1b\[2m *≈ 2\.00 \[-0\.48, 4\.48\]", out)
    assert re.search(r"\x1b\[32m *↑ 10\.00 \[10\.00, 10\.00\]", out)


def test_a_table_needs_no_torch(runs: list[LoadedRun]) -> None:
    code = "import sys; from comity.__main__ import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    arguments = ["table", str(runs[0].path.parent), "--format", "md"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "+ ConFREE" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told_"),
    [
        ([], "comity table needs FOLDERS: comity table FOLDERS… [options]"),
        (["nowhere"], "nowhere holds neither a run (config.yaml) nor a study"),
        (["RUNS", "--format", "pdf"], "--format must be terminal | md | tex | csv, got 'pdf'"),
        (["RUNS", "--from", "md"], "unknown option '--from'; did you mean --format"),
    ],
)
def test_bad_input_is_one_line(
    runs: list[LoadedRun], capsys: pytest.CaptureFixture[str], arguments: list[str], told_: str
) -> None:
    from comity.__main__ import main

    assert main(["table", *(str(runs[0].path.parent) if a == "RUNS" else a for a in arguments)]) == 2
    out, err = capsys.readouterr()
    assert (out, told_ in err, err.count("\n")) == ("", True, 1)
