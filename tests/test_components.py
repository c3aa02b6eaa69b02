"""Options: declared once, converted and refused in the same words wherever they come from."""

import math
import runpy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
import yaml

import comity
from comity import ComityError, Config
from comity._catalogue import FILE, KINDS, describe, described, find
from comity._components import Component
from comity._options import Count, NonNegative, Option, Positive, Range, Share, check, convert, options
from comity.commands import command
from comity.config import COMPONENTS
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


def test_the_catalogue_is_what_the_classes_say() -> None:
    made = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "make_catalogue.py"))["introspect"]()
    assert FILE.read_text(encoding="utf-8") == made, "run `python docs/make_catalogue.py`"


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_gives_back_what_was_described(kind: str) -> None:
    for name, description in described(kind).items():
        if kind != "data":
            component = description.load()
            assert describe(kind, name, component, description.path) == description
        assert description.about, name


def test_every_option_is_explained() -> None:
    for kind in KINDS:
        for description in described(kind).values():
            for option in description.options.values():
                assert option.help, (kind, description.name, option.name)


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
    for option in options(Config).values():
        if option.name not in COMPONENTS:
            yield option.name, None, option
    for kind in KINDS:
        for description in described(kind).values():
            for option in description.options.values():
                yield f"{kind}.{option.name}", description.name, option


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


def test_nothing_else_is_annotated() -> None:
    """The catalogue knows ranges; another annotation would be lost in it."""
    for _, _, option in bounded():
        assert all(isinstance(part, Range) for part in _annotations(option.type))


def _annotations(to: Any) -> Iterator[Any]:
    if get_origin(to) is Annotated:
        yield from get_args(to)[1:]
    elif get_origin(to) is not Literal:
        for part in get_args(to):
            yield from _annotations(part)
