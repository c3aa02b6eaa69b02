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
    for line in (line.removeprefix("$ ") for line in fenced):
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
    assert untested.row(0.01) == ["y", "not tested", "–", "why", "–", "–", "1.2"]
    several = claims.Claim("x", "y", "z", lambda: {"a": chance, "b": contrary, "c": sure}).row(0.01)
    assert several[2:4] == ["1 ↑, 1 ↓ of 3", "median 0.50; 2.00 [1.50, 2.50] c … −2.00 [−2.50, −1.50] b"]
    assert several[5:] == ["8", "–"]


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
    counted = [each for claim in tested for each in claim.found.values()]
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
    runs, table = ["block,method,rule,seed,unstable,round 10,round 500"], ["method,rule,seeds,accuracy"]
    for arm, seeds in arms.items():
        method, _, rule = arm.partition(" + ")
        for seed in range(seeds):
            last = 30 + seed + 2 * rule.startswith("ConFREE") + 0.1 * seed * rule.startswith("ConFREE")
            runs.append(f",{method},{rule},{seed},0,{last + 3 * rule.startswith('ConFREE')},{last}")
        table.append(f"{method},{rule},{' '.join(map(str, range(seeds)))},30")
    for name, rows in (("-runs", runs), ("", table)):
        (folder / f"confree-decisive{name}.csv").write_text("\n".join(rows) + "\n")


def test_a_part_of_the_decisive_experiment_is_shown_and_not_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import claims
    import measured

    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    monkeypatch.setattr(claims, "FOLDER", tmp_path)
    says = "has its largest gains under APFL and FedALA (Flowers102, 60 clients, 30 % online)"
    (listed,) = [claim for claim in claims.CLAIMS if claim.says == says]

    def row(**arms: int) -> list[str]:
        kept_runs(tmp_path, {arm.replace("_", " + "): seeds for arm, seeds in arms.items()})
        measured.lines.cache_clear()
        return replace(listed).row(0.01)  # a new one, which has not looked yet

    measured.lines.cache_clear()
    nothing = replace(listed).row(0.01)
    assert nothing[1:4] == ["not tested", "–", "0 of 64 runs; `comity reproduce confree-decisive --scale paper`"]
    some = row(FedALA_Mean=6, FedALA_ConFREE=5)
    assert some[1] == "not tested"  # five seeds of eight
    assert some[3].startswith("FedALA: 2.20 [")
    assert some[3].endswith(", 5 of 8 seeds (largest over rounds 5.20 [5.00, 5.40]); APFL not run")
    assert claims.decisive() == "11 of 64 runs"
    assert "| FedALA + ConFREE | 34.20 ± 1.74 | 37.20 ± 1.74 | 5 |" in claims.decisive_table()
    half = row(FedALA_Mean=8, FedALA_ConFREE=8, APFL_Mean=1)
    assert half[1:3] == ["shown in part", "1 ↑, 0 ↓ of 1"]  # one method of two
    assert "8 of 8 seeds" in half[3]
    assert half[3].endswith("APFL not run")
    whole = {"FedALA_Mean": 8, "FedALA_ConFREE": 8, "APFL_Mean": 8, "APFL_ConFREE": 8}
    assert row(**whole)[1:3] == ["shown", "2 ↑, 0 ↓ of 2"]
    measured.lines.cache_clear()


def test_finished_runs_of_the_decisive_experiment_are_kept_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import make_results
    import measured

    study = tmp_path / "study"
    comity.study(**SMALL, method="FedALA", rule=["Mean", "ConFREE"], seeds=2, reference="none", jobs=1, out=study)
    (study / "runs" / "fedala-confree-s1" / "result.json").unlink()
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    make_results.keep("confree-decisive", study)
    measured.lines.cache_clear()
    assert [(each.label, len(each.runs)) for each in measured.lines("confree-decisive")] == [
        ("FedALA + Mean", 2),
        ("FedALA + ConFREE", 1),
    ]
    assert json.loads((tmp_path / "studies.json").read_text())["confree-decisive"]["runs"] == 3
    measured.lines.cache_clear()
    with pytest.raises(SystemExit, match="is not finished"):
        make_results.keep("confree-table1", study)


def test_the_list_of_tables_has_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import claims
    import make_results

    assert make_results.STATES.read_text() == make_results.stated()
    items = {item.item for item in claims.items()}
    assert {claim.item for claim in claims.CLAIMS} <= items
