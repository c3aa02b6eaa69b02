"""What people type who come from elsewhere gets the right hint, in one line."""

import hashlib
import json
import re
from pathlib import Path

import pytest

import comity
from comity._catalogue import KINDS, described, find
from comity._errors import ComityError
from comity._hints import ALIASES, COMMANDS, NEAREST, OPTIONS
from comity._labels import spelling
from comity._options import options
from comity.commands import COMMANDS as NAMES
from comity.commands import command
from comity.config import Config

PFLLIB = (Path(__file__).parents[1] / "docs/how-to/from-pfllib.md").read_text()


def said(line: str) -> str:
    name, *arguments = line.split()
    with pytest.raises(ComityError) as error:
        command(name, arguments)
    return str(error.value)


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("--alpha 0.1", "unknown option '--alpha'; did you mean --partition.alpha?"),
        ("--alpha 0.1 --method APFL", "unknown option '--alpha'; did you mean --partition.alpha or --method.alpha?"),
        ("--method Ditto --lam 2", "unknown option '--lam'; did you mean --method.lam?"),
        ("--mu 2", "unknown option '--mu'; did you mean --method.mu (FedProx, GPFL, FedDBE)?"),
        ("--moment fitted", "unknown option '--moment'; did you mean --eval-point?"),
        ("--aplha 0.1", "unknown option '--aplha'; did you mean --partition.alpha?"),
        ("--algorithm FedAvg", "unknown option '--algorithm'; did you mean --method?"),
        ("-algo FedAvg", "unknown option '-algo'; did you mean --method?"),
        ("-m cnn", "unknown option '-m'; did you mean --model?"),
        ("-M 5", "unknown option '-M'; did you mean --method.models (FedFomo)?"),
        ("-lbs 10", "unknown option '-lbs'; did you mean --batch-size?"),
        ("-gr 100", "unknown option '-gr'; did you mean --rounds?"),
        ("-nc 20", "unknown option '-nc'; did you mean --clients?"),
        ("-jr 0.5", "unknown option '-jr'; did you mean --participation?"),
        ("-lr 0.1", "unknown option '-lr'; did you mean --lr?"),
        ("-data mnist", "unknown option '-data'; did you mean --data?"),
        ("-did 0", "unknown option '-did'; did you mean --device?"),
        ("-cpu", "unknown option '-cpu'; did you mean --device?"),
        ("-ls 5", "unknown option '-ls'; did you mean --epochs?"),
        ("--local_learning_rate 1", "unknown option '--local-learning-rate'; did you mean --lr?"),
        ("-t 3", "unknown option '-t'; repetitions are seeds: comity study --seeds 3"),
        ("-nb 10", "unknown option '-nb'; the number of classes is read from the data"),
        ("-ncl 10", "unknown option '-ncl'; the number of classes is read from the data"),
        ("-hd 512", "unknown option '-hd'; it belongs to a method that comity does not have"),
        ("-o runs/a", "unknown option '-o'; did you mean --out?"),
        ("--dir_alpha 0.1", "unknown option '--dir-alpha'; did you mean --partition.alpha?"),
        ("--aggregator median", "unknown option '--aggregator'; did you mean --rule?"),
        ("--seeds 3", "unknown option '--seeds'; repetitions are seeds: comity study --seeds 3"),
        ("--val_ratio 0.1", "unknown option '--val-ratio'; did you mean --val-share?"),
        ("--test_interval 5", "unknown option '--test-interval'; did you mean --eval-every?"),
        ("--use_wandb", "unknown option '--use-wandb'; experiment trackers are chosen with --track"),
        ("--client_num_per_round 5", "unknown option '--client-num-per-round'; did you mean --participation?"),
        ("--method FedCross", "comity has no method FedCross; the nearest is FedAvg"),
        ("--method pFedSim", "comity has no method pFedSim; the nearest is FedAMP"),
        ("--model mclr", "unknown model 'mclr'; did you mean logistic?"),
        ("--guard on", "unknown guard 'on'; did you mean mixture?"),
        ("--method MOON", "comity has no method MOON; the nearest is FedProx"),
        ("--method feddyn", "comity has no method feddyn; the nearest is FedProx"),
        ("--method PerAvg", "unknown method 'PerAvg'; did you mean Per-FedAvg?"),
        ("--method ConFREE", "unknown method 'ConFREE'; ConFREE is a rule: --rule ConFREE"),
        ("--rule FedRep", "unknown rule 'FedRep'; FedRep is a method: --method FedRep"),
        ("--rule Krum", "comity has no rule Krum; the nearest is GeometricMedian"),
        ("--model dnn", "unknown model 'dnn'; did you mean mlp?"),
        ("--partition pat", "unknown partition 'pat'; did you mean pathological?"),
        ("SCAFFOLD", "unexpected argument 'SCAFFOLD'; SCAFFOLD is a method: --method SCAFFOLD"),
        ("MOON", "comity has no method MOON; the nearest is FedProx"),
    ],
)
def test_a_hint(typed: str, sentence: str) -> None:
    assert said(f"run {typed}") == sentence
    if typed.startswith("-m "):
        assert said(f"study {typed}") == sentence


def test_a_hint_names_no_option_that_the_command_has_not() -> None:
    assert "--method" not in said("table --algorithm FedAvg")
    assert "--batch-size" not in said("data -lbs 10")


def test_a_renamed_option_is_read_from_older_files_and_does_not_change_the_key(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("moment: fitted\n")
    config = Config.load(tmp_path / "config.yaml")
    assert config.eval_point == "fitted"
    assert "moment" not in config.plain()
    before = {name: value for name, value in config.plain().items() if options(Config)[name].decides}
    before["moment"] = before.pop("eval_point")
    assert config.key == hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()[:16]


def test_commands_by_other_names() -> None:
    assert said("train --method FedAvg") == "unknown command 'train'; did you mean run?"
    assert said("lst methods") == "unknown command 'lst'; did you mean list?"
    assert said("scaffold") == "unknown command 'scaffold'; in comity run, SCAFFOLD is a method: --method SCAFFOLD"
    assert set(COMMANDS.values()) <= set(NAMES)
    assert not {name for names in COMMANDS for name in names.split()} & set(NAMES)


def test_hints_in_python_and_files_have_no_dashes() -> None:
    for name, sentence in (
        ("algorithm", "unknown option 'algorithm'; did you mean method?"),
        ("alpha", "unknown option 'alpha'; did you mean partition.alpha?"),
        ("local_bs", "unknown option 'local_bs'; did you mean batch_size?"),
        ("num_rounds", "unknown option 'num_rounds'; did you mean rounds?"),
    ):
        with pytest.raises(ComityError, match=re.escape(sentence)):
            comity.run(**{name: 1})
        with pytest.raises(ComityError, match=re.escape(sentence)):
            Config.of({name: 1})


def exists(option: str) -> bool:
    kind, dot, name = option.partition(".")
    name = name.replace("-", "_")
    if dot:
        return any(name in each.options for each in described(kind).values())
    return option.replace("-", "_") in options(Config) or option == "seeds"


@pytest.mark.parametrize("ours", OPTIONS.values())
def test_every_option_that_is_named_exists(ours: str) -> None:
    named = re.findall(r"--([\w.-]+)", ours) if " " in ours else [ours]
    assert all(exists(option) for option in named)


@pytest.mark.parametrize("kind", KINDS)
def test_every_component_that_is_named_exists_and_none_that_exists_is_hidden(kind: str) -> None:
    known = {spelling(name) for name in described(kind)}
    for table in (ALIASES, NEAREST):
        for names, ours in table.get(kind, {}).items():
            assert not known & set(map(spelling, names.split())), "comity has it: delete the line"
            component = re.split(r"[ ,]", ours)[0]
            if not component.startswith("torchvision:"):
                assert find(kind, component).name == component
            assert all(exists(option) for option in re.findall(r"--([\w.-]+)", ours))


def test_no_name_is_there_twice() -> None:
    typed = [name for names in OPTIONS for name in names.split()]
    assert len(typed) == len(set(typed))
    assert not {name.replace("-", "_") for name in typed} & options(Config).keys()


OPTION_ROWS = re.findall(r"^\| (`-.+?`) \| `(--[\w.-]+)` \|", PFLLIB, flags=re.MULTILINE)
NEAREST_ROWS = re.findall(r"^\| (`.+`) \| not in comity; the nearest is `(\w+)` \|", PFLLIB, flags=re.MULTILINE)


@pytest.mark.parametrize(("theirs", "ours"), OPTION_ROWS)
def test_the_page_for_users_of_pfllib_says_what_a_hint_says(theirs: str, ours: str) -> None:
    assert len(OPTION_ROWS) > 20
    for name in re.findall(r"`(-[^`]+)`", theirs):
        assert re.search(rf"did you mean (?:\S+ or )?{ours}(?: \(.*\))?\?$", said(f"run {name} 1")), name


@pytest.mark.parametrize(("theirs", "ours"), NEAREST_ROWS)
def test_it_names_the_same_nearest_methods(theirs: str, ours: str) -> None:
    for name in re.findall(r"`([^`]+)`", theirs):
        assert said(f"run --method {name}") == f"comity has no method {name}; the nearest is {ours}"


def test_methods_of_the_same_name_are_there() -> None:
    (row,) = re.findall(r"^\| (.+) \| the same names \|$", PFLLIB, flags=re.MULTILINE)
    for name in re.findall(r"`([^`]+)`", row):
        assert find("method", name).name == name
