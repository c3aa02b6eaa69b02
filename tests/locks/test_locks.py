"""Bit for bit what comity did before the redesign of issue 30: README.md says when a fixture may change."""

import pytest
from adapter import DROPPED
from make import LOCKS, machine, read

CASES = [(kind, name) for kind, (cases, _) in LOCKS.items() for name in cases]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda part: part.replace(" ", "-"))
def test_every_bit_is_as_it_was(kind: str, name: str) -> None:
    here, there = machine(), read("machine")
    if differ := [key for key in there if there[key] != here[key]]:
        pytest.skip("; ".join(f"the locks were made with {key} {there[key]}, this is {here[key]}" for key in differ))
    locked = read(kind)
    known = {key for entry in locked.values() for key in entry} - DROPPED  # what is new is not locked
    found = LOCKS[kind][1](name)
    differ = sorted(key for key in known if found.get(key) != locked[name].get(key))
    assert {key: found.get(key) for key in differ} == {key: locked[name].get(key) for key in differ}


def test_no_lock_is_forgotten() -> None:
    assert {kind: list(read(kind)) for kind in LOCKS} == {kind: list(cases) for kind, (cases, _) in LOCKS.items()}
