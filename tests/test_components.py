"""Options: declared once, converted and refused in the same words wherever they come from."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

import comity
from comity import ComityError, Config
from comity._catalogue import KINDS, describe, described, find, paths
from comity._components import Component
from comity._options import SAME, Count, NonNegative, Option, Range, Share, check, convert, option, options
from comity.commands import command
from comity.config import COMPONENTS, LOCAL_OPTIONS, Overlay, Training
from comity.data import Synthetic
from comity.engine import Extension
from comity.studies._grid import at_scale, expand
from helpers import TINY, Options

CONVERTED: list[tuple[Any, Any, Any]] = [
    ("3", int, 3),
    (3.0, int, 3),
    ("1e-3", float, 1e-3),
    (2, float, 2.0),
    ("yes", bool, True),
    (0, bool, False),
    ("a/b", Path, Path("a/b")),
    ("none", int | None, None),
    ("4", int | None, 4),
    ("2", Literal[1, 2], 2),
    ("200,100", tuple[int, ...], (200, 100)),
    ("[200, 100]", tuple[int, ...], (200, 100)),
    (200, tuple[int, ...], (200,)),
    ("", tuple[int, ...], ()),
    ("0.5", Share, 0.5),
    # errors
    ("3.5", int, "a whole number, got '3.5'"),
    (3.5, int, "a whole number, got 3.5"),
    (True, int, "a whole number, got True"),
    ("x", float, "a number, got 'x'"),
    ("nan", float, "a finite number, got nan"),
    (math.inf, Share | None, "a finite number, got inf"),
    (-math.inf, NonNegative, "a finite number, got -inf"),
    ("maybe", bool, "true or false, got 'maybe'"),
    ("c", Literal["a", "b"], "a | b, got 'c'"),
    ("x", int | None, "a whole number, got 'x'"),
    ("x", int | Literal["all"], "a whole number or all, got 'x'"),
    ("1,x", tuple[int, ...], "a whole number, got 'x'"),
    ("1,0", tuple[Count, ...], "at least 1, got 0"),
    (2, Share, "at least 0 and at most 1, got 2.0"),
    (0, Count | None, "at least 1, got 0"),
    (None, Count, "a whole number, got None"),
]


@pytest.mark.parametrize(("value", "to", "wanted"), CONVERTED)
def test_a_value_becomes_what_is_asked_for_or_is_rejected_in_words(value: Any, to: Any, wanted: Any) -> None:
    if isinstance(wanted, str):
        with pytest.raises(ComityError) as error:
            convert(value, to, "key")
        assert str(error.value) == f"key must be {wanted}"
    else:
        got = convert(value, to, "key")
        assert (got, type(got)) == (wanted, type(wanted))


def test_options_are_read_from_annotations_and_help_from_docstrings() -> None:
    @dataclass(kw_only=True)
    class Parent:
        """Something.

        Options:
            lam: strength of the pull, which
                goes on here
            form: how

        And more: of other things.
        """

        lam: NonNegative = 1.0
        form: Literal["a", "b"] = "a"

        def __post_init__(self) -> None:
            check(self, "method")

    @dataclass(kw_only=True)
    class Child(Parent):
        """Something else.

        Options:
            form: how, here
        """

        steps: Count = 3

    assert list(options(Child).values()) == [
        Option("lam", NonNegative, 1.0, "strength of the pull, which goes on here"),
        Option("form", Literal["a", "b"], "a", "how, here"),
        Option("steps", Count, 3, ""),
    ]
    assert options(Child)["lam"].kind == "a number, at least 0"
    assert Child(lam="2").lam == 2.0  # type: ignore[arg-type]
    with pytest.raises(ComityError, match=r"^method\.lam must be at least 0, got -1\.0$"):
        Child(lam=-1)


@pytest.mark.parametrize("name", ["LG-FedAvg", "lgfedavg", "LG_FedAvg", "lg-fedavg"])
def test_names_are_found_in_any_spelling(name: str) -> None:
    assert find("method", name).name == "LG-FedAvg"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "extension"])
def test_the_source_says_of_a_component_what_its_class_says(kind: str) -> None:
    listed = resolve_name(KINDS[kind][0])
    assert list(described(kind)) == list(listed)
    for name, description in described(kind).items():
        assert description.about, name
        assert all(option.help for option in description.options.values()), name
        if paths(kind)[name]:
            component = description.load()
            assert kind == "data" or component is listed[name]
            path = f"{component.__module__}.{component.__qualname__}"
            about = description.about if kind == "data" else ""
            assert describe(kind, name, component, path, about) == description


@pytest.mark.parametrize(
    ("doc", "paper"),
    [
        (
            "A sentence\nof two lines.\n\nPaper: Li et al., ICML 2021,\nAlgorithm 1.\nEquation: v",
            "Li et al., ICML 2021, Algorithm 1",
        ),
        ("A sentence of two lines.\n\nLi et al., AAAI 2025: more.", "Li et al., AAAI 2025"),
        ("A sentence of two lines.", ""),
    ],
)
def test_a_docstring_says_what_it_is_and_from_which_paper(doc: str, paper: str) -> None:
    description = describe("method", "Mine", type("Mine", (), {"__doc__": doc}), "mine.Mine")
    assert (description.about, description.paper) == ("A sentence of two lines.", paper)


def test_a_component_is_complete_and_plain() -> None:
    ditto = Component.parse("method", {"name": "ditto", "lam": "0.5"})
    assert ditto.plain() == {"name": "Ditto", "lam": 0.5, "personal_epochs": None}
    assert Component.parse("method", ditto.plain()) == ditto
    with pytest.raises(ComityError, match=r"method must be a name or a mapping with `name`, a subclass of"):
        Component.parse("method", 3)
    assert Component.parse("data", "Fashion_MNIST").name == "fashion-mnist"
    hub = Component.parse("data", "hub:owner/mnist")
    assert hub.name == "hub:owner/mnist"
    tables = {"target": None, "client": None, "text": None, "missing": "mean", "schema": None, "sheet": None}
    assert hub.options == {"size": None, **tables, "centred": True}


def test_the_key_tells_runs_apart_by_what_decides_them() -> None:
    base = Config()
    assert base.key == Config(workers=7, out="x", checkpoint_every=3).key
    assert base.key != Config(seed=1).key
    assert base.key != Config(method={"name": "FedAvg", "personal_model": "finetune"}).key
    assert base.key == Config.of(base.plain()).key


def test_options_that_came_later_leave_older_keys_and_files_as_they_were() -> None:
    base = Config()
    assert base.key == "98e1a575d04263f7"
    assert not {"trainer", "extension", "training_seed"} & base.plain().keys()
    chosen = base.with_(trainer="chain")
    assert (chosen.plain()["trainer"], chosen.key == base.key) == ("chain", False)
    assert chosen.local_baseline().trainer == "chain"  # the local baseline is trained in the same way


def test_an_option_is_the_runs_own_in_the_local_baseline_unless_it_says_otherwise() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Some:
        section = "some"
        kept: int = option(1, "what")
        other: int = option(2, "what", decides=False, local=3)

    declared = options(Some)
    assert [(o.section, o.decides, o.local) for o in declared.values()] == [("some", True, SAME), ("some", False, 3)]
    config = Config(method="Ditto", rule="ConFREE", server_lr=0.5, guard="mixture", lr=0.1, out="x", track="wandb")
    alone = config.local_baseline()
    assert {name: str(getattr(alone, name)) for name in LOCAL_OPTIONS} == {n: str(v) for n, v in LOCAL_OPTIONS.items()}
    own = options(Config).keys() - LOCAL_OPTIONS.keys() - {"val_share"}
    assert {name: getattr(alone, name) for name in own} == {name: getattr(config, name) for name in own}


def test_a_configuration_is_its_sections() -> None:
    assert isinstance(Config(), Training)
    sections = {name: declared.section for name, declared in options(Config).items()}
    assert all(sections.values())
    assert [f.name for f in fields(Training)] == [name for name in sections if sections[name] == "local training"]


class Mine(Extension):
    """Mine."""

    strength: float = 0.5


@pytest.mark.parametrize("given", [f"{__name__}.Mine", Mine, Mine(strength=1)])
def test_an_extension_of_ones_own_is_chosen_with_its_options(given: Any) -> None:
    config = Config.of({"extension": given, "extension.strength": "0.25"})
    assert config.plain()["extension"] == {"name": f"{__name__}.Mine", "strength": 0.25}
    assert config.key != Config().key
    assert Config.of(config.plain()) == config
    assert config.local_baseline().extension is None


def test_what_is_no_extension_is_rejected() -> None:
    for entries, said in (
        ({"extension": "Mine"}, "unknown extension 'Mine'; there are none (or give the dotted path of your own class)"),
        ({"extension": "pathlib.Path"}, "extension 'pathlib.Path' is not a subclass of comity.engine.Extension"),
        ({"extension.strength": 1}, "extension.strength is given without extension"),
    ):
        with pytest.raises(ComityError) as error:
            Config.of(entries)
        assert str(error.value) == said


def test_options_beside_a_file_win_and_another_name_drops_its_options() -> None:
    file = {"method": {"name": "Ditto", "lam": 2.0}, "lr": 0.3, "rounds": 7}
    config = Config.of(Overlay(file, {"lr": "0.1"}))
    assert (config.lr, config.rounds, config.method.options["lam"]) == (0.1, 7, 2.0)
    config = Config.of(Overlay(file, {"lr": "0.1", "method": "FedProx"}))
    assert (config.lr, config.method.name, config.method.options["mu"]) == (0.1, "FedProx", 0.01)
    # the same name in another spelling keeps them, beside those that are given
    config = Config.of(Overlay(file, {"method": "ditto", "method.personal_epochs": "3"}))
    assert config.method.options == {"lam": 2.0, "personal_epochs": 3}
    assert Config.of(Overlay(file, {"method.personal_epochs": 3})) == config
    # entries of a study that are no options of a run stay as they are
    study = Overlay({"sweep": {"lr": [1]}, "method": ["Ditto"], "rule.c": 0.1}, {"method": "FedRep"})
    assert study == {"sweep": {"lr": [1]}, "method": "FedRep", "rule.c": 0.1}
    assert study.without(["rule", "sweep"]) == {"method": "FedRep"}


def test_files_from_before_track_are_still_read(tmp_path: Path) -> None:
    for before, track in (("tensorboard: false\nmlflow: false", ()), ("wandb: true\ntensorboard: false", ("wandb",))):
        (tmp_path / "c.yaml").write_text(before + "\nlr: 0.3\n")
        config = Config.load(tmp_path / "c.yaml")
        assert (config.track, config.lr, config.key) == (track, 0.3, Config(lr=0.3).key)
    for call in (lambda: Config.of({"wandb": True}), lambda: comity.run(wandb=True)):
        with pytest.raises(ComityError) as error:
            call()
        assert str(error.value) == "wandb is a value of track; give --track wandb (in Python track='wandb')"


def test_a_method_of_a_study_may_name_its_rules_wherever_it_stands() -> None:
    method = {"name": "FedAvg", "rule": ["Mean", "ConFREE"]}
    for entries in ({"method": method}, {"grid": [{"method": method}]}, at_scale({"desk": {"method": method}}, "desk")):
        assert [str(cell.rule) for cell in expand(entries)] == ["Mean", "ConFREE"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: comity.run(metod="FedRep"),
        lambda: comity.run(Config(), metod="FedRep"),
        lambda: comity.study(metod="FedRep", out="x"),
        lambda: Config.of({"metod": "FedRep"}),
        lambda: Config().with_(metod="FedRep"),
    ],
)
def test_a_misspelt_option_in_python_is_told_the_nearest(call: Callable[[], object]) -> None:
    with pytest.raises(ComityError, match=r"^unknown option 'metod'; did you mean method"):
        call()


def test_dotted_options_in_python() -> None:
    options: Options = TINY | {"method": "Ditto", "method.lam": 0.5}
    assert comity.run(**options).config.method.options["lam"] == 0.5
    changed = Config(rule="ConFREE").with_(**{"rule.c": 0.25, "lr": 0.1})
    assert (changed.rule.name, changed.rule.options["c"], changed.lr) == ("ConFREE", 0.25, 0.1)


# Ranges: one sentence for a value outside, through the command line, YAML and Python.


def ranges(to: Any) -> Iterator[Range]:
    if get_origin(to) is not Literal:
        for part in get_args(to):
            yield from [part] if isinstance(part, Range) else ranges(part)


def outside(allowed: Range, step: float) -> list[float]:
    """The nearest numbers that a range leaves out."""
    nearest = (allowed.above, allowed.below, allowed.least - step, allowed.most + step)
    return [number for number in nearest if math.isfinite(number)]


def whole_numbers(to: Any) -> bool:
    return to is int or any(whole_numbers(part) for part in get_args(to) if not isinstance(part, Range))


def bounded() -> Iterator[tuple[str, str | None, Option]]:
    for name, declared in options(Config).items():
        if name not in COMPONENTS:
            yield name, None, declared
    for kind in KINDS:
        for description in described(kind).values():
            for name, declared in description.options.items():
                yield f"{kind}.{name}", description.name, declared


CASES = [
    pytest.param(key, name, declared, allowed, id=f"{name or 'run'} {key}")
    for key, name, declared in bounded()
    for allowed in ranges(declared.type)
]
assert {str(case.values[0]).partition(".")[0] for case in CASES} >= {"data", "partition", "model", "method", "lr"}


@pytest.mark.parametrize(("key", "name", "declared", "allowed"), CASES)
def test_a_value_outside_its_range_is_refused_in_the_same_words_everywhere(
    key: str, name: str | None, declared: Option, allowed: Range, tmp_path: Path
) -> None:
    every = list(ranges(declared.type))  # an option may be one of two kinds of numbers
    for value in outside(allowed, 1 if whole_numbers(declared.type) else 0.5):
        if any(value in each for each in every):
            continue
        number = int(value) if whole_numbers(declared.type) else float(value)
        for way in ways(key, name, declared.name, number, tmp_path / "c.yaml"):
            with pytest.raises(ComityError) as error:
                way()
            assert str(error.value) in [f"{key} must be {each}, got {number}" for each in every]


def ways(key: str, name: str | None, option: str, number: float, file: Path) -> Iterator[Callable[[], object]]:
    """All ways to give an option a number: command line, YAML, Python, and the class itself."""
    kind = key.partition(".")[0]
    chosen: dict[str, Any] = {} if name is None else {kind: name}
    nested: dict[str, Any] = {key: number} if name is None else {kind: {"name": name, option: number}}
    file.write_text(yaml.safe_dump(nested))
    yield partial(command, "run", [f"--{key}", f"{number:g}", *(f"--{kind}={name}" for kind, name in chosen.items())])
    yield partial(command, "run", ["--config", str(file)])
    yield partial(comity.run, **nested)
    yield partial(Config.of, chosen | {key: number})
    if name == "synthetic":
        yield partial(Synthetic, **{option: number})  # type: ignore[arg-type]
    elif name is not None and kind != "data":
        supplied = {"shape": (1, 8, 8), "classes": 4} if kind == "model" else {}
        yield partial(find(kind, name).load(), **supplied, **{option: number})
