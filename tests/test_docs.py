"""The tutorials do what they say: their files are written, their Python is run, and so are their commands."""

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import comity
from comity.__main__ import main
from comity._layout import Layout
from comity.commands import find
from comity.compare import Spread
from comity.data.sources.embedded import HEART
from comity.engine import Server
from comity.methods import Message, Reply
from comity.rules import Sketch

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)

PAGES = ["README.md", *sorted(page.relative_to(DOCS.parent).as_posix() for page in DOCS.rglob("*.md"))]
TUTORIALS = {f"docs/tutorials/own-{kind}.md": f"my{kind}" for kind in ("method", "rule", "extension")}
PYTHON = [page for page in PAGES if "```python\n" in (DOCS.parent / page).read_text() and page not in TUTORIALS]
SMALL: dict[str, Any] = {"rounds": 1, "clients": 4, "model": {"name": "mlp", "widths": (8,)}, "eval_every": 1}


def blocks(page: str, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall((DOCS.parent / page).read_text()) if found == language]


@pytest.mark.parametrize(("page", "module"), TUTORIALS.items())
def test_a_tutorial(page: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    first, *more = blocks(page, "python")
    assert f"`{module}.py`" in (DOCS.parent / page).read_text()
    Path(f"{module}.py").write_text(first)
    sys.path.append(str(tmp_path))
    for block in more:
        exec(compile(block, page, "exec"), {})
    for line in "".join(blocks(page, "")).splitlines():
        _, *arguments = shlex.split(line, comments=True)
        small = ["--clients", "4", "--model", "mlp", "--rounds", "1", "--quiet"] if "--help" not in arguments else []
        small += ["--jobs", "1"] if arguments[0] in ("study", "bench") else []
        assert main([*arguments, *small]) == 0, line
    sys.modules.pop(module)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one(page: str) -> None:
    """Whatever follows ``comity`` on a page is parsed, to the last option."""
    text = (DOCS.parent / page).read_text().replace("\\\n", " ")
    fenced = [line for language, block in BLOCK.findall(text) if language != "python" for line in block.splitlines()]
    for line in (line.removeprefix("$ ").removeprefix("srun ") for line in fenced):
        if line.startswith("comity ") and not line.startswith("comity ["):
            _, name, *arguments = shlex.split(line, comments=True)
            find(name).parse(arguments)


@pytest.mark.parametrize("page", [*PAGES, "SECURITY.md"])
def test_every_test_that_is_named_exists(page: str) -> None:
    """In the file that is named before it."""
    files = {path.name: path.read_text() for path in (DOCS.parent / "tests").rglob("test_*.py")}
    file = ""
    for name in re.findall(r"`(?:[\w/]+/)?(test_\w+(?:\.py)?)`", (DOCS.parent / page).read_text()):
        if name.endswith(".py"):
            assert name in files, name
            file = name
        elif file:
            assert f"def {name}(" in files[file], f"{file}: {name}"


LINKING = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples", "docs", "evidence"]
GENERATED = {"docs/reference/commands.md", "docs/reference/options.md"}
"""Pages that docs/make_site.py makes."""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs and GitHub name them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_every_link_leads_somewhere() -> None:
    root = DOCS.parent
    pages = [page for name in LINKING for page in (root / name, *(root / name).rglob("*.md")) if page.is_file()]
    broken = []
    for page in pages:
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", BLOCK.sub("", page.read_text())):
            found = (page.parent / target).resolve() if target else page
            if found.relative_to(root.resolve()).as_posix() in GENERATED:
                continue
            if not found.exists() or (anchor and anchor not in anchors(found)):
                broken.append(f"{page.relative_to(root)}: {target}#{anchor}")
    assert len(pages) > 40
    assert broken == []


def test_every_page_that_the_program_names_exists() -> None:
    """In help texts, error messages, docstrings and the files of generated apps."""
    files = [*DOCS.parent.glob("src/comity/**/*.py"), *DOCS.parent.glob("src/comity/**/*.tpl")]
    named = {name for file in files for name in re.findall(r"docs/[\w/-]+\.md", file.read_text())}
    assert "docs/how-to/deploy.md" in named
    assert {name for name in named if not (DOCS.parent / name).is_file()} == set()


def state_dicts(count: int) -> list[dict[str, torch.Tensor]]:
    """With BatchNorm's, one of which is an integer."""
    return [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).state_dict() for _ in range(count)]


def prepared(page: str) -> dict[str, Any]:
    """What a page takes for granted."""
    server, *clients = state_dicts(4)
    floats = [{name: value for name, value in each.items() if value.is_floating_point()} for each in (server, *clients)]
    if page == "docs/how-to/any-framework.md":
        for name, model in zip(("base", "a", "b"), floats, strict=False):
            save_file(model, f"{name}.safetensors")
    probabilities, wrong = torch.rand(50, 2, dtype=torch.float64) * 0.9 + 0.05, torch.rand(50) > 0.7
    table = {"outcome": [0, 1] * 20, "age": [30 + k * k % 47 for k in range(40)], "hospital": ["a", "b", "c", "d"] * 10}
    vectors, ownership = np.random.default_rng(0).normal(size=(40, 5)).astype("float32"), np.arange(40) % 4
    layout = Layout.of(floats[0])
    rows, key = [layout.vector(model) for model in floats[1:]], b"a key"
    if page == "docs/tutorials/scikit-learn.md":
        Path("patients.csv").write_text(HEART.read_text().replace("disease", "outcome", 1))
    known: dict[str, dict[str, Any]] = {
        "README.md": {"ours": server, "clients": clients, "X": vectors, "y": np.arange(40) % 2, "X_new": vectors}
        | dict.fromkeys(("hospital", "hospital_new"), ownership),
        "docs/how-to/any-framework.md": {"base": floats[0], "clients": floats[1:]},
        "docs/explanation/guard-mathematics.md": {"validation_probabilities": probabilities.numpy()}
        | dict.fromkeys(("own_wrong", "mixture_wrong", "federated_wrong"), wrong.numpy()),
        "docs/explanation/guard.md": {"weights": [0.5, 0.5], "x": torch.rand(2, 3), "own": nn.Linear(3, 2)}
        | {"federated": nn.Linear(3, 2)},
        "docs/how-to/feedback.md": {"probabilities": np.full((2, 30, 2), 0.5), "labels": np.arange(30) % 2},
        "docs/how-to/newcomers.md": {"Server": Server, "Reply": Reply, "Message": Message},
        "docs/tutorials/own-data.md": {"x": vectors, "y": np.arange(40) % 2, "client": ownership, "frame": table},
        "docs/reference/rules.md": {"server": floats[0], "clients": floats[1:], "sizes": [1, 2, 3]}
        | {"names": ["a", "b", "c"], "server_vector": torch.zeros(layout.size)},
        "docs/explanation/sketches.md": {"update": rows[0], "layout": layout, "key": key, "sizes": [1, 2, 3]}
        | {"others": [Sketch(1024).sketch(row, layout, key) for row in rows[1:]]},
    }
    return known.get(page, {})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
@pytest.mark.parametrize("page", PYTHON)
def test_every_block_of_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another, as a reader would, with runs made small."""
    monkeypatch.chdir(tmp_path)
    run, study = comity.run, comity.study
    small = (
        {key: SMALL[key] for key in ("rounds", "eval_every")}
        if page in ("docs/tutorials/own-data.md", "docs/tutorials/scikit-learn.md")
        else SMALL
    )
    monkeypatch.setattr(comity, "run", lambda **options: run(**options | small))
    monkeypatch.setattr(comity, "study", lambda **options: study(**options | SMALL | {"seeds": 1, "jobs": 1}))
    known = {"__name__": "page"} | prepared(page)
    for block in blocks(page, "python"):
        if "comity.nvflare" not in block:  # its own tests are those of make test-nvflare
            exec(compile(block, page, "exec", dont_inherit=True), known)


def test_every_measured_number_is_that_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import make_results

    for path in make_results.PAGES:
        text = path.read_text()
        assert "<!-- = " in text
        assert make_results.page(text) == text, f"{path.name}: make results"
        emptied = re.sub(r"( -->).*?(<!-- \. -->)", r"\1\2", text, flags=re.DOTALL)
        assert emptied != text
        assert make_results.page(emptied) == text


def test_what_a_claim_comes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import claims
    from differences import detectable, of_half

    sure, chance, contrary = of_half(2.0, 0.5, 8), of_half(0.5, 0.5, 8), of_half(-2.0, 0.5, 8)
    for compared, word in (
        ({"a": sure}, "shown"),
        ({"a": sure, "b": chance}, "shown in part"),
        ({"a": sure, "b": contrary}, "shown in part"),
        ({"a": chance}, "no effect larger than 1.0"),
        ({"a": chance, "b": contrary}, "contradicted"),
        ({"a": chance, "b": contrary, "c": chance}, "no effect larger than 1.0"),
    ):
        found, power, _ = claims.Claim("x", "y", "z", lambda compared=compared: compared).outcome(0.01)
        assert found == word
        assert power.startswith(f"{detectable(sure, 0.01):.1f}")
    nothing = claims.Claim("x", "y", "z", lambda: {"a": of_half(0.2, 0.5, 8)}, same=True)
    assert nothing.outcome(0.01)[0] == "shown"
    assert claims.Claim("x", "y", "z", lambda: {"a": sure}, same=True).outcome(0.01)[0] == "contradicted"
    untested = claims.Claim("x", "y", "z", lambda: {"a": sure}, unfit="why", paper_has=lambda: "1.2")
    assert untested.outcome(0.01) == ("not tested", "–", "why")
    assert untested.row(0.01) == ["y", "not tested", "–", "why", "–", "1.2"]
    several = claims.Claim("x", "y", "z", lambda: {"a": chance, "b": contrary, "c": sure}).row(0.01)
    assert several[1] == "shown in part"
    mixed = claims.Claim("x", "y", "z", lambda: {"a": contrary, "b": contrary, "c": sure})
    assert (mixed.outcome(0.01)[0], mixed.row(0.01)[1]) == ("shown in part", "shown in part, mostly against")
    assert several[2] == "1 for, 1 against, of 3"
    assert several[3] == "median 0.50<br>highest 2.00 [1.50, 2.50] c<br>lowest −2.00 [−2.50, −1.50] b"
    assert several[5:] == ["–"]
    assert nothing.row(0.01)[2] == "1 of 1 within ±1"


def test_published_differences_are_those_of_the_same_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import published_numbers as paper

    assert paper.largest("APFL") == "3.42"
    assert paper.largest("FedALA") == "2.79"
    assert len(paper.gaps("confree-table1", {"rule": "ConFREE"}, {"rule": "Mean"})) == 48  # eight methods, six columns
    fashion = paper.gaps(
        "fedpg-table1",
        {"method": "FedPG", "method.gamma": "0"},
        {"method": "FedAvg", "method.gamma": None},
        "global",
        data="fashion-mnist",
    )
    assert fashion == [pytest.approx(89.0 - 41.1)]


def test_the_correction_counts_every_comparison_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import claims
    from differences import discovered

    assert discovered([0.01, 0.5, 0.6, 0.7]) == 0.01
    assert discovered([0.02, 0.5, 0.6, 0.7]) == 0
    assert discovered([0.02, 0.024, 0.6, 0.7]) == 0.024  # two of four, each below 2/4 of 5 %
    tested = [claim for claim in claims.CLAIMS if claim.outcome(0)[0] != "not tested"]
    counted = [each for claim in tested for each in claim.found.values() if each.p_value is not None]
    assert claims.counted_comparisons().startswith(f"{len(counted)} comparisons")
    assert claims.level() == discovered([each.p_value for each in counted if each.p_value is not None])


def test_power_is_that_of_simulated_t_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    from differences import detectable, of_half
    from scipy.stats import t, ttest_1samp

    half = float(t.ppf(0.975, 7)) / 8**0.5  # of eight seeds with a spread of 1
    effect = detectable(of_half(0.0, half, 8), 0.02)
    assert effect is not None
    drawn = np.random.default_rng(0).normal(effect, 1, (20_000, 8))
    assert abs((ttest_1samp(drawn, 0, axis=1).pvalue < 0.02).mean() - 0.8) < 0.01


def test_one_diverged_run_does_not_hide_eight_losses_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    from differences import Ranked
    from measured import line
    from scipy.stats import wilcoxon

    found = line("confree-table1-cifar10", "FedRep + ConFREE").over(line("confree-table1-cifar10", "FedRep + Mean"))
    assert isinstance(found, Ranked)
    assert found.p_value == 2 / 2**8
    assert found.high is not None
    assert found.high < 0
    random = np.random.default_rng(1)
    for _ in range(20):
        values = random.normal(0.5, 1, 8)
        made = Ranked.over_seeds(Spread(dict(enumerate(values))))
        assert made is not None
        assert made.p_value == pytest.approx(wilcoxon(values, mode="exact").pvalue)
        assert made.low is not None
        assert made.high is not None
        assert (made.low > 0 or made.high < 0) == (made.p_value < 0.05)


def kept_runs(folder: Path, arms: dict[str, int]) -> None:
    """Files of the decisive experiment with so many seeds of each arm; ConFREE gains 2 points, more at its best."""
    runs, table = ["block,method,rule,seed,unstable,peak samples,round 10,round 500"], ["method,rule,seeds,accuracy"]
    for arm, seeds in arms.items():
        method, _, rule = arm.partition(" + ")
        for seed in range(seeds):
            last = 30 + seed + (2 + 0.1 * seed) * rule.startswith("ConFREE")
            peak = last + 3 * rule.startswith("ConFREE")
            runs.append(f",{method},{rule},{seed},0,{peak + rule.startswith('ConFREE')},{peak},{last}")
        table.append(f"{method},{rule},{' '.join(map(str, range(seeds)))},30")
    for name, rows in (("-runs", runs), ("", table)):
        (folder / f"confree-decisive{name}.csv").write_text("\n".join(rows) + "\n")


def test_each_method_of_the_decisive_experiment_is_judged_when_it_is_complete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import claims
    import decisive
    import measured

    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    monkeypatch.setattr(claims, "level", lambda: 0.01)
    apfl, fedala, _ = (claim for claim in claims.CLAIMS if claim.item == claims.LARGEST)
    command = "`comity reproduce confree-decisive --scale paper`, about {} hours of one core for all"
    ala, pfl = (
        command.format(f"{claims._hours_of('confree-decisive', 'paper', method=m):.0f}") for m in decisive.METHODS
    )

    def rows(**arms: int) -> tuple[list[str], list[str]]:
        kept_runs(tmp_path, {arm.replace("_", " + "): seeds for arm, seeds in arms.items()})
        measured.lines.cache_clear()
        return replace(fedala).row(0.01), replace(apfl).row(0.01)  # new ones, which have not looked yet

    measured.lines.cache_clear()
    assert replace(fedala).row(0.01)[1:4] == ["not tested", "–", f"0 of 32 runs; {ala}"]
    assert decisive.decisive_table() == "No finished run is in this table yet."
    rows(FedALA_Mean=8)  # one arm alone
    assert decisive.decisive() == "8 of 64 runs (FedALA + Mean: all 8 seeds)"
    assert "| FedALA + Mean | 8 | " in decisive.decisive_table()
    some, _ = rows(FedALA_Mean=6, FedALA_ConFREE=5)  # five seeds of eight
    assert some[1:] == ["not tested", "–", f"11 of 32 runs; {ala}", "–", "2.79"]
    assert decisive.decisive() == "11 of 64 runs"
    assert "| FedALA + ConFREE | 5 | 34.20 ± 1.74 | 37.20 ± 1.74 | 38.20 ± 1.74 | 59.33 |" in decisive.decisive_table()
    gains = "| FedALA + ConFREE | Mean | 5 | 2.20 [2.00, 2.40] | 5.20 [5.00, 5.40] | 6.20 [6.00, 6.40] | 2.79 | – |"
    assert decisive.decisive_gains().endswith(gains)  # no arrow: it is not judged
    half, other = rows(FedALA_Mean=8, FedALA_ConFREE=8, APFL_Mean=1)
    assert half[1:3] == ["shown", "1 for, 0 against, of 1"]
    assert half[5:] == ["2.79"]
    assert other[1:] == ["not tested", "–", f"1 of 32 runs; {pfl}", "–", "3.42"]
    assert decisive.decisive() == "17 of 64 runs (FedALA + Mean, FedALA + ConFREE: all 8 seeds)"
    assert "| FedALA + ConFREE | Mean | 8 | ↑ 2.35 [2.15, 2.55] | 5.35 [" in decisive.decisive_gains()
    (tmp_path / "confree-decisive").mkdir()
    for name in ("fedala-mean-s0", "apfl-mean-s0", "apfl-confree-s0", "local-s0"):
        (tmp_path / "confree-decisive" / f"{name}.tar.xz").touch()
    assert decisive.decisive().startswith("18 of 64 runs")  # two of APFL are carried along, one of them is in the table
    measured.lines.cache_clear()


def test_finished_runs_of_the_decisive_experiment_are_kept_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import decisive
    import make_results
    import measured

    study = tmp_path / "study"
    small = SMALL | {"rounds": 3, "eval_every": 1, "reference": "none", "jobs": 1}
    done = comity.study(**small, method=["FedALA", "Local"], rule=["Mean", "ConFREE"], seeds=2, out=study)
    (study / "runs" / "fedala-confree-s1" / "result.json").unlink()
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    make_results.keep("confree-decisive", study)
    measured.lines.cache_clear()
    found = decisive.arms()
    assert {arm: len(each.runs) for arm, each in found.items()} == {
        ("FedALA", "Mean"): 2,
        ("FedALA", "ConFREE"): 1,
        ("Local", ""): 2,
    }
    told = json.loads((tmp_path / "studies.json").read_text())["confree-decisive"]
    assert told["runs"] == 5
    assert told["trainers"]
    (run,) = [run for run in done.runs if run.path.name == "fedala-mean-s0"]
    peak = max(record.metrics["L-acc"].samples for record in run.records)
    assert found["FedALA", "Mean"].by_seed(decisive.POOLED).by_seed[0] == pytest.approx(100 * peak, abs=1e-4)
    rows = {(row["rule"], row["against"]): row for row in measured.read("confree-decisive-harm.csv")}
    assert rows.keys() == {("ConFREE", "Mean"), ("Mean", "Local"), ("ConFREE", "Local")}
    by_name = {run.path.name: run.by_client("L-acc") for run in done.runs}
    for (rule, against), row in rows.items():
        seeds, other = (0,) if rule == "ConFREE" else (0, 1), "local" if against == "Local" else "fedala-mean"
        both = [(by_name[f"fedala-{rule.lower()}-s{s}"], by_name[f"{other}-s{s}"]) for s in seeds]
        pairs = [(mine[k], theirs[k]) for mine, theirs in both for k in theirs]
        assert int(row["clients"]) == len(pairs)
        assert int(row["lower"]) == sum(mine < theirs for mine, theirs in pairs)
        assert int(row["higher"]) == sum(mine > theirs for mine, theirs in pairs)
    assert f"| FedALA + ConFREE | Mean | {rows['ConFREE', 'Mean']['clients']} |" in decisive.decisive_harm()
    measured.lines.cache_clear()
    with pytest.raises(SystemExit, match="is not finished"):
        make_results.keep("confree-table1", study)


def test_fedcalms_largest_gains_are_judged_with_all_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import claims
    import decisive
    import measured

    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    (claim,) = [claim for claim in claims.CLAIMS if claim.item == "FedCALM largest gain"]
    last = {"FedCP": 60, "FedRep": 61, "FedCALM (stages=1, C=100.0)": 64, "FedCALM (stages=2, C=100.0)": 75}

    def row(seeds: int) -> list[str]:
        runs = [f',"{name}",,{s},0,{value + s}' for name, value in last.items() for s in range(seeds)]
        table = [f'"{name}",,{" ".join(map(str, range(seeds)))},{value}' for name, value in last.items()]
        runs.insert(0, "block,method,rule,seed,unstable,round 9")
        (tmp_path / "fedcalm-decisive-runs.csv").write_text("\n".join(runs) + "\n")
        (tmp_path / "fedcalm-decisive.csv").write_text("\n".join(["method,rule,seeds,accuracy", *table]) + "\n")
        measured.lines.cache_clear()
        return replace(claim).row(0.01)

    measured.lines.cache_clear()
    assert row(7)[1:3] == ["not tested", "–"]
    found = row(decisive.SEEDS)
    assert found[1:3] == ["shown", "2 for, 0 against, of 2"]
    assert found[3].endswith("highest 15.00 [15.00, 15.00] FedCP<br>lowest 11.00 [11.00, 11.00] its first stage")
    assert found[-1] == "12.75 (over FedCP), 11.68 (over its first stage)"
    measured.lines.cache_clear()


def test_the_list_of_tables_has_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import claims
    import make_results

    assert make_results.STATES.read_text() == make_results.stated()
    items = {item.item for item in claims.items()}
    assert {claim.item for claim in claims.CLAIMS} <= items
