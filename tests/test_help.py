"""Help pages, lists and errors: they teach, and they come at once, without torch."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

from comity import commands
from comity._catalogue import KINDS, described
from comity._options import options
from comity.commands import COMMANDS, find
from comity.commands.list import Kind
from comity.config import Config
from comity.studies import examples

HEAVY = ("torch", "numpy", "scipy", "sklearn", "comity.engine", "comity.methods", "comity.rules", "comity.nn")

PROGRAM = f"""
import sys
from comity.__main__ import main
code = main(sys.argv[1:])
loaded = [name for name in {HEAVY} if name in sys.modules]
print(loaded, file=sys.stderr) if loaded else None
sys.exit(99 if loaded else code)
"""


def run(*arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
    """The exit code and what is printed, in a process of its own; 99 if it imported anything heavy."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=cwd
    )
    return done.returncode, done.stdout, done.stderr


PAGES = [
    ["--help"],
    *([name, "--help"] for name in COMMANDS),
    ["flower", "new", "--help"],
    ["run", "--method", "Ditto", "--rule", "ConFREE", "--model", "mlp", "--data", "synthetic", "--help"],
    ["study", "--method", "FedAvg,Ditto", "--help"],
    *(["list", kind] for kind in get_args(Kind) if kind != "runs"),
]


@pytest.mark.parametrize("arguments", PAGES, ids=" ".join)
def test_pages_need_nothing_heavy(arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) > 5
    assert max(len(line) for line in out.splitlines() if "the files are in" not in line) <= 120


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rnu"], "unknown command 'rnu'; did you mean run?"),
        (["run", "--methd", "x"], "unknown option '--methd'; did you mean --method"),
        (["run", "--method", "Dito"], "unknown method 'Dito'; did you mean Ditto?"),
        (
            ["run", "--method.lamda", "1", "--method", "Ditto"],
            "unknown option 'lamda' of method Ditto; did you mean lam?",
        ),
        (["run", "--partition.alpha", "-1"], "partition.alpha must be above 0, got -1.0"),
        (["run", "--resume", "--out", "nowhere"], "--resume: nowhere holds no run to resume"),
        (["study", "--rule", "Mean,ConFRE", "--out", "x"], "unknown rule 'ConFRE'; did you mean ConFREE"),
        (["reproduce", "dmeo"], "unknown example 'dmeo'; did you mean demo?"),
        (["aggregate", "a", "b", "-o", "c", "--rule", "Meen"], "unknown rule 'Meen'; did you mean Mean"),
        (["table", "--fromat", "md"], "unknown option '--fromat'; did you mean --format?"),
        (
            ["list", "method"],
            "KIND must be methods | rules | guards | extensions | models | data | partitions | examples | runs, got "
            "'method'",
        ),
        (["list", "runs"], "comity list runs needs a folder: comity list runs FOLDER"),
        (["list", "methods", "runs"], "comity list methods takes no folder, got runs"),
        (["data", "--lr", "3"], "unknown option '--lr'"),
        (["run", "--data", "fasion", "--guard", "mixture"], "unknown data set 'fasion'; did you mean fashion-mnist"),
        (["data", "--data", "mnist", "--data-dir", "."], "data mnist: looked for mnist.npz and the folder mnist/"),
        (["study", "--data", "a.csv", "--method", "FEDORA", "--out", "x"], "data a.csv: no such file or folder"),
        (["reproduce", "fedora-shifts", "--data-dir", "."], "data fashion-mnist: looked for fashion-mnist.npz"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_need_nothing_heavy_either(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    code, out, err = run(*arguments, cwd=tmp_path)
    assert (code, out) == (2, ""), err
    assert err.startswith(f"comity: {sentence}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_names_every_option_with_its_help_and_two_examples(name: str) -> None:
    command = find(name)
    page, words = command.help(), " ".join(command.help().split())
    for option in (*command.options, *command.run_options.values()):
        assert f"--{option.name.replace('_', '-')}" in page
        assert not option.section or f"\n{option.section}:\n" in page
    for option in (*command.arguments, *command.options, *command.run_options.values()):
        assert option.help
        assert option.help in words, option.name
    assert command.description[0].endswith(".")
    assert len(command.examples) >= 2
    assert all(f"comity {name} " in example and example in words for example in command.examples)
    for example in command.examples:
        _, _, *arguments = example.replace("'", "").split()
        values = command.parse(arguments)
        given = {key: value for key, value in values.items() if key in command.run_options or "." in key}
        if name in ("run", "data", "flower"):
            Config.of(given)
        if name == "reproduce":
            assert values.get("list") or values["example"] in examples()


def test_ranges_are_told_once_and_with_the_default() -> None:
    page = " ".join(find("run").help().split())
    for words in ("(above 0) [0.05]", "of one (at least 0) [1]", "(at least 1 or above 0 and below 1)"):
        assert words in page
    assert find("run").run_options.keys() == options(Config).keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_shows_the_options_of_every_component(kind: str) -> None:
    for name, description in described(kind).items():
        page = find("run").help({kind: name})
        assert f"\n{kind} {name}:\n" in page
        for option in description.options.values():
            assert f"--{kind}.{option.name} " in page


def test_a_page_shows_what_an_action_uses_and_the_default_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.command("flower", ["keys", "--help"]) == 0
    page = capsys.readouterr().out
    assert "--clients N" in page
    assert "--rounds" not in page
    assert "\nrule " not in page
    assert commands.command("flower", ["new", "--help"]) == 0
    assert "--rounds" in capsys.readouterr().out
    assert "\nrule ConFREE:\n" in find("aggregate").help()
    assert "\nrule Mean:\n" in find("run").help()


def test_every_command_has_a_place_of_its_own_in_the_overview() -> None:
    assert [command.name for command in commands.overview()][:4] == ["ask", "join", "run", "study"]
    assert len({command.order for command in commands.overview()}) == len(COMMANDS)


def test_a_page_shows_what_a_file_chooses(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"method": {"name": "Ditto", "lam": 2}, "rule": "ConFREE"}))
    page = find("run").help({"rule": "CALM"}, str(tmp_path / "c.yaml"))
    assert "--method.lam" in page
    assert "\nrule CALM:\n" in page
    assert "\nrule ConFREE:\n" not in page


def test_a_page_has_only_what_was_chosen() -> None:
    page = find("run").help({"method": "Ditto", "rule.c": "0.3", "rule": "ConFREE", "rounds": "3"})
    assert [line for line in page.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        "method Ditto:",
        "rule ConFREE:",
    ]
    assert page.endswith("\ncomity run --help shows all other options\n")
    assert "\nguard mixture:\n" in find("study").help({"guard": "none,mixture"})
    whole = find("run").help({"rounds": "3"})
    assert "\npartition dirichlet:\n" in whole
    assert "\nguard " not in whole
