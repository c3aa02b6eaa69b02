"""A component (method, rule, model, partition, …) chosen by name, with its options."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comity._catalogue import Description, find
from comity._errors import ComityError, unknown
from comity._options import REQUIRED, convert


@dataclass(frozen=True)
class Component:
    """A component's name with complete and checked options."""

    kind: str
    name: str
    options: Mapping[str, Any]
    description: Description = field(compare=False, repr=False)

    @classmethod
    def parse(cls, kind: str, value: Any) -> "Component":
        """Parse ``"Ditto"``, ``{"name": "Ditto", "lam": 0.5}`` or a component; in Python also a class or an object."""
        if isinstance(value, Component):
            return value
        entry = value if isinstance(value, Mapping) else {"name": value}
        if entry.get("name") is None:
            raise ComityError(f"{kind} must be a name or a mapping with `name`, got {value!r}")
        description = find(kind, entry["name"])
        for key in entry.keys() - {"name"}:
            if key not in description.options:
                raise unknown("option", key, description.options, of=f"of {kind} {description.name}")
        values = {}
        for key, option in description.options.items():
            if key in entry:
                values[key] = convert(entry[key], option.type, f"{kind}.{key}")
            elif option.default is REQUIRED:
                raise ComityError(f"{kind} {description.name} needs {kind}.{key}")
            else:
                values[key] = option.default
        return cls(kind, description.name, values, description)

    @property
    def given(self) -> Any:
        """The class or object given in Python, or None."""
        return self.description.given

    def trait(self, name: str, default: Any) -> Any:
        """The value of one of the TRAITS, without importing the class."""
        return self.description.traits.get(name, default)

    def build(self, **supplied: Any) -> Any:
        """Create the component, passing those of the ``supplied`` arguments that it takes."""
        component = self.description.load()
        parameters = inspect.signature(component).parameters
        return component(**self.options, **{key: value for key, value in supplied.items() if key in parameters})

    def plain(self) -> dict[str, Any]:
        """A mapping of numbers, text and lists, for YAML."""
        return {"name": self.name} | {key: plain(value) for key, value in self.options.items()}

    def __str__(self) -> str:
        return self.name


def plain(value: Any) -> Any:
    """A value in YAML form: components as mappings, tuples as lists, paths as text."""
    if isinstance(value, Component):
        return value.plain()
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
