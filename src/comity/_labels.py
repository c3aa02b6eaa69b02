"""Canonical spelling of names, and labels of runs and configurations in tables, titles and file names."""

import re

GUARDED = {"mixture": "guarded"}
"""Label of a method under a guard, if it is not the guard's name."""
EVALUATED = {"received": "before local training", "fitted": "after local training"}
"""Evaluation points in words: which of a client's models is evaluated."""


def titled(method: str, rule: str = "", guard: str | None = None) -> str:
    """``FedAvg, guarded + Mean``; ``rule`` is empty for a method without a choice of rules."""
    name = method if guard is None else f"{method}, {GUARDED.get(guard, guard)}"
    return f"{name} + {rule}" if rule else name


def spelling(name: str) -> str:
    """A canonical form for all spellings of a name: ``LG-FedAvg`` = ``lg_fedavg``, ``FedMGDA+`` = ``fedmgdaplus``."""
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("+", "plus"))


def slug(text: str) -> str:
    """Text as part of a file name: ``FedMGDA+`` becomes ``fedmgda``."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
