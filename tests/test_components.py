from pathlib import Path
from typing import Any, Literal

import pytest

from comity import ComityError, Config
from comity._components import Component, convert, find, options


@pytest.mark.parametrize(
    ("value", "to", "wanted"),
    [
        ("3", int, 3),
        (3.0, int, 3),
        ("1e-3", float, 1e-3),
        (2, float, 2.0),
        ("yes", bool, True),
        ("off", bool, False),
        ("a/b", Path, Path("a/b")),
        ("none", int | None, None),
        ("4", int | None, 4),
        ("b", Literal["a", "b"], "b"),
        ("200,100", tuple[int, ...], (200, 100)),
        ("[200, 100]", tuple[int, ...], (200, 100)),
        ([200, 100], tuple[int, ...], (200, 100)),
        ("", tuple[int, ...], ()),
    ],
)
def test_strings_and_yaml_become_what_is_asked_for(value: Any, to: Any, wanted: Any) -> None:
    got = convert(value, to, "key")
    assert got == wanted
    assert type(got) is type(wanted)


@pytest.mark.parametrize(
    ("value", "to", "told"),
    [
        ("3.5", int, "key must be a whole number, got '3.5'"),
        (3.5, int, "key must be a whole number, got 3.5"),
        (True, int, "key must be a whole number, got True"),
        ("x", float, "key must be a number, got 'x'"),
        ("maybe", bool, "key must be true or false, got 'maybe'"),
        ("c", Literal["a", "b"], "key must be a | b, got 'c'"),
        ("x", int | None, "key must be a whole number or none, got 'x'"),
        ("1,x", tuple[int, ...], "key must be a whole number, got 'x'"),
    ],
)
def test_what_does_not_fit_is_told_in_words(value: Any, to: Any, told: str) -> None:
    with pytest.raises(ComityError, match="^" + told.replace("|", r"\|")):
        convert(value, to, "key")


@pytest.mark.parametrize("name", ["LG-FedAvg", "lgfedavg", "LG_FedAvg", "lg-fedavg"])
def test_names_are_found_in_any_spelling(name: str) -> None:
    assert find("method", name)[0] == "LG-FedAvg"


def test_every_component_has_typed_options_with_defaults_and_says_what_it_is() -> None:
    from comity._components import ROOMS, SUPPLIED, choices

    for kind in ROOMS:
        for name, component in choices(kind).items():
            if isinstance(component, type):
                assert component.__doc__, name
                if kind != "data":
                    for option in options(component, SUPPLIED.get(kind, ())).values():
                        assert option.type is not option.default, (name, option)


def test_a_component_is_complete_and_plain() -> None:
    ditto = Component.parse("method", {"name": "ditto", "lam": "0.5"})
    assert ditto.plain() == {"name": "Ditto", "lam": 0.5, "personal_epochs": None}
    assert Component.parse("method", ditto.plain()) == ditto
    with pytest.raises(ComityError, match="method must be a name or a mapping with `name`, got 3"):
        Component.parse("method", 3)


def test_the_key_tells_runs_apart_by_what_decides_them() -> None:
    base = Config()
    assert base.key == Config(workers=7, out="x", checkpoint_every=3).key
    assert base.key != Config(seed=1).key
    assert base.key != Config(method={"name": "FedAvg", "personal_model": "finetune"}).key
    assert base.key == Config.of(base.plain()).key
