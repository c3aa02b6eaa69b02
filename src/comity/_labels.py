"""Names in one spelling, and the labels that runs and configurations have in tables, titles and file names."""

import re

GUARDED = {"mixture": "guarded"}
"""What a method is called under a guard, where it is not the guard's own name."""


def titled(method: str, rule: str = "", guard: str | None = None) -> str:
    """``FedAvg, guarded + Mean``; ``rule`` is empty for a method without a choice of rules."""
    name = method if guard is None else f"{method}, {GUARDED.get(guard, guard)}"
    return f"{name} + {rule}" if rule else name


def spelling(name: str) -> str:
    """The same for all spellings of a name: ``LG-FedAvg`` and ``lg_fedavg``, ``FedMGDA+`` and ``fedmgdaplus``."""
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("+", "plus"))


def slug(text: str) -> str:
    """Text as part of a file's name: ``FedMGDA+`` as ``fedmgda``."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
