"""Options: declared once, converted and refused in the same words wherever they come from."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

import comity
from comity import ComityError, Config
from comity._catalogue import KINDS, describe, described, find, paths
from comity._components import Component
from comity._options import Count, NonNegative, Option, Positive, Range, Share, check, convert, option, options
from comity.commands import command
from comity.config import COMPONENTS, LOCAL_OPTIONS, Training
from comity.data import Synthetic


@pytest.mark.parametrize(
    ("value", "to", "wanted"),
    [
        ("3", int, 3),
        (3.0, int, 3),
        ("1e-3", float, 1e-3),
        (2, float, 2.0),
        ("yes", bool, True),
        ("off", bool, False),
        (0, bool, False),
        ("a/b", Path, Path("a/b")),
        ("none", int | None, None),
        ("4", int | None, 4),
        ("b", Literal["a", "b"], "b"),
        ("2", Literal[1, 2], 2),
        ("200,100", tuple[int, ...], (200, 100)),
        ("[200, 100]", tuple[int, ...], (200, 100)),
        ([200, 100], tuple[int, ...], (200, 100)),
        (200, tuple[int, ...], (200,)),
        ("", tuple[int, ...], ()),
        ("0.5", Share, 0.5),
        ("none", Count | None, None),
    ],
)
def test_strings_and_yaml_become_what_is_asked_for(value: Any, to: Any, wanted: Any) -> None:
    got = convert(value, to, "key")
    assert got == wanted
    assert type(got) is type(wanted)


@pytest.mark.parametrize(
    ("value", "to", "sentence"),
    [
        ("3.5", int, "key must be a whole number, got '3.5'"),
        (3.5, int, "key must be a whole number, got 3.5"),
        (True, int, "key must be a whole number, got True"),
        ("x", float, "key must be a number, got 'x'"),
        ("nan", float, "key must be a finite number, got nan"),
        (math.inf, float, "key must be a finite number, got inf"),
        ("maybe", bool, "key must be true or false, got 'maybe'"),
        ("c", Literal["a", "b"], "key must be a | b, got 'c'"),
        ("x", int | None, "key must be a whole number, got 'x'"),
        ("x", int | Literal["all"], "key must be a whole number or all, got 'x'"),
        ("1,x", tuple[int, ...], "key must be a whole number, got 'x'"),
        ("1,0", tuple[Count, ...], "key must be at least 1, got 0"),
        (-1, Positive, "key must be above 0, got -1.0"),
        (2, Share, "key must be at least 0 and at most 1, got 2.0"),
        (0, Count | None, "key must be at least 1, got 0"),
        (None, Count, "key must be a whole number, got None"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(value: Any, to: Any, sentence: str) -> None:
    with pytest.raises(ComityError) as error:
        convert(value, to, "key")
    assert str(error.value) == sentence


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
    room, listed = KINDS[kind]
    assert list(described(kind)) == list(getattr(import_module(room), listed))
    for name, description in described(kind).items():
        assert description.about, name
        assert all(option.help for option in description.options.values()), name
        module, _, attribute = paths(kind)[name].rpartition(".")
        if kind != "data":
            component = getattr(import_module(room), listed)[name]
            assert describe(kind, name, component, f"{component.__module__}.{component.__qualname__}") == description
        elif module:
            reader = getattr(import_module(module), attribute)
            assert describe(kind, name, reader, "", description.about) == description


@pytest.mark.parametrize(
    ("doc", "about", "paper"),
    [
        (
            """One sentence.

            Paper: Li et al., ICML 2021, Algorithm 1
            and its appendix.
            Equation: v ← v − lr
            """,
            "One sentence.",
            "Li et al., ICML 2021, Algorithm 1 and its appendix",
        ),
        (
            "A sentence\nof two lines.\n\nZheng et al., AAAI 2025: more.",
            "A sentence of two lines.",
            "Zheng et al., AAAI 2025",
        ),
        ("Nobody's.", "Nobody's.", ""),
    ],
)
def test_a_docstring_says_what_it_is_and_from_which_paper(doc: str, about: str, paper: str) -> None:
    component = type("Mine", (), {"__doc__": doc})
    description = describe("method", "Mine", component, "mine.Mine")
    assert (description.about, description.paper) == (about, paper)


def test_a_component_is_complete_and_plain() -> None:
    ditto = Component.parse("method", {"name": "ditto", "lam": "0.5"})
    assert ditto.plain() == {"name": "Ditto", "lam": 0.5, "personal_epochs": None}
    assert Component.parse("method", ditto.plain()) == ditto
    with pytest.raises(ComityError, match=r"method must be a name or a mapping with `name`, a subclass of"):
        Component.parse("method", 3)
    assert Component.parse("data", "Fashion_MNIST").name == "fashion-mnist"
    assert Component.parse("data", "hub:owner/mnist").plain() == {
        "name": "hub:owner/mnist",
        "size": None,
        "target": None,
        "client": None,
        "missing": "mean",
        "centred": True,
    }


def test_the_key_tells_runs_apart_by_what_decides_them() -> None:
    base = Config()
    assert base.key == Config(workers=7, out="x", checkpoint_every=3).key
    assert base.key != Config(seed=1).key
    assert base.key != Config(method={"name": "FedAvg", "personal_model": "finetune"}).key
    assert base.key == Config.of(base.plain()).key


def test_options_that_came_later_leave_older_keys_and_files_as_they_were() -> None:
    base = Config()
    assert base.key == "3b3f5f2a61835955"
    assert not {"trainer", "extension"} & base.plain().keys()
    chosen = base.with_(trainer="chain")
    assert (chosen.plain()["trainer"], chosen.key == base.key) == ("chain", False)
    assert chosen.alone().trainer == "chain"  # the local baseline is trained in the same way


def test_an_option_is_the_runs_own_in_the_local_baseline_unless_it_says_otherwise() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Some:
        section = "some"
        kept: int = option(1, "what")
        other: int = option(2, "what", decides=False, local=3)

    declared = options(Some)
    assert [(each.section, each.decides) for each in declared.values()] == [("some", True), ("some", False)]
    assert declared["other"].local == 3
    config = Config(method="Ditto", rule="ConFREE", server_lr=0.5, guard="mixture", lr=0.1, out="x", track="wandb")
    alone = config.alone()
    assert {name: str(getattr(alone, name)) for name in LOCAL_OPTIONS} == {n: str(v) for n, v in LOCAL_OPTIONS.items()}
    own = options(Config).keys() - LOCAL_OPTIONS.keys() - {"val_share"}
    assert {name: getattr(alone, name) for name in own} == {name: getattr(config, name) for name in own}


def test_a_configuration_is_its_sections() -> None:
    assert isinstance(Config(), Training)
    assert [f.name for f in fields(Training)] == [
        o.name for o in options(Config).values() if o.section == "local training"
    ]
    assert all(option.section for option in options(Config).values())


EXTENSION = '''
from dataclasses import dataclass

from comity import engine

@dataclass
class Mine(engine.Extension):
    """Mine."""

    strength: float = 0.5
'''


def test_an_extension_of_ones_own_is_named_with_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "extended.py").write_text(EXTENSION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("comity.engine.Extension", type("Extension", (), {}), raising=False)
    config = Config.of({"extension": "extended.Mine", "extension.strength": "0.25"})
    assert config.plain()["extension"] == {"name": "extended.Mine", "strength": 0.25}
    assert config.key != Config().key
    assert Config.of(config.plain()) == config
    assert config.alone().extension is None
    for entries, said in (
        ({"extension": "Mine"}, "unknown extension 'Mine'; there are none (or give the dotted path of your own class)"),
        ({"extension": "pathlib.Path"}, "extension 'pathlib.Path' is not a subclass of comity.engine.Extension"),
        ({"extension.strength": 1}, "extension.strength is given without extension"),
    ):
        with pytest.raises(ComityError) as error:
            Config.of(entries)
        assert str(error.value) == said


# Ranges: one sentence for a value outside, through the command line, YAML and Python.


def ranges(to: Any) -> Iterator[Range]:
    if get_origin(to) is not Literal:
        for part in get_args(to):
            yield from [part] if isinstance(part, Range) else ranges(part)


def outside(allowed: Range, whole: bool) -> Iterator[float]:
    step = 1 if whole else 0.5
    if allowed.least is not None:
        yield allowed.least - step
    if allowed.above is not None:
        yield allowed.above
    if allowed.most is not None:
        yield allowed.most + step
    if allowed.below is not None:
        yield allowed.below


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
    pytest.param(key, name, option, allowed, id=f"{name or 'run'} {key}")
    for key, name, option in bounded()
    for allowed in ranges(option.type)
]


def test_there_are_ranges_of_every_kind_of_component() -> None:
    """Else the next test would pass for want of anything to test."""
    with_ranges = {key.partition(".")[0] for key, _, option in bounded() if any(ranges(option.type))}
    assert with_ranges >= {"data", "partition", "model", "lr", "rounds", "participation"}


@pytest.mark.parametrize(("key", "name", "option", "allowed"), CASES)
def test_a_value_outside_its_range_is_refused_in_the_same_words_everywhere(
    key: str, name: str | None, option: Option, allowed: Range, tmp_path: Path
) -> None:
    every = list(ranges(option.type))  # an option may be one of two kinds of numbers
    for value in outside(allowed, whole_numbers(option.type)):
        if any(value in each for each in every):
            continue
        number = int(value) if whole_numbers(option.type) else float(value)
        for way in ways(key, name, option.name, number, tmp_path / "c.yaml"):
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


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (key, name)
        for key, name, option in bounded()
        if option.type is float or get_args(option.type)[:1] == (float,) or float in get_args(option.type)
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_is_nan_or_infinite(key: str, name: str | None, value: float) -> None:
    chosen = {} if name is None else {key.partition(".")[0]: name}
    with pytest.raises(ComityError) as error:
        Config.of(chosen | {key: value})
    assert str(error.value) == f"{key} must be a finite number, got {value}"
