"""A method, rule, model, partition or data set that is chosen by name, with its options."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comity._catalogue import find
from comity._errors import ComityError, unknown
from comity._options import REQUIRED, convert


@dataclass(frozen=True)
class Component:
    """A choice by name with its options, checked and complete."""

    kind: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, kind: str, value: Any) -> "Component":
        """From ``"Ditto"``, ``{"name": "Ditto", "lam": 0.5}`` or a component."""
        if isinstance(value, Component):
            return value
        entry = {"name": value} if isinstance(value, str) else value
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise ComityError(f"{kind} must be a name or a mapping with `name`, got {value!r}")
        description = find(kind, entry["name"])
        for key in entry.keys() - {"name"}:
            if key not in description.options:
                raise unknown(f"option of {kind} {description.name}", key, description.options)
        values = {}
        for key, option in description.options.items():
            if key in entry:
                values[key] = convert(entry[key], option.type, f"{kind}.{key}")
            elif option.default is REQUIRED:
                raise ComityError(f"{kind} {description.name} needs {kind}.{key}")
            else:
                values[key] = option.default
        return cls(kind, description.name, values)

    def build(self, **supplied: Any) -> Any:
        """The component itself; it is given those of the ``supplied`` arguments that it takes."""
        component = find(self.kind, self.name).load()
        parameters = inspect.signature(component).parameters
        return component(**self.options, **{key: value for key, value in supplied.items() if key in parameters})

    def plain(self) -> dict[str, Any]:
        """For YAML: a mapping of numbers, text and lists."""
        return {"name": self.name} | {key: plain(value) for key, value in self.options.items()}

    def __str__(self) -> str:
        return self.name


def plain(value: Any) -> Any:
    """A value as YAML writes it: components as mappings, tuples as lists, paths as text."""
    if isinstance(value, Component):
        return value.plain()
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def slug(text: str) -> str:
    """Text as part of a file's name: ``FedMGDA+`` as ``fedmgda``."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
