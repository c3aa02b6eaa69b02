"""Writes src/comity/catalogue.json from the classes themselves: ``python docs/make_catalogue.py``."""

import json
import types
from dataclasses import asdict
from importlib import import_module
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from comity._catalogue import FILE, KINDS, SIMPLE, Description, describe
from comity._options import REQUIRED, Range


def introspect() -> str:
    """What ``catalogue.json`` has to hold: JSON with a line for each component."""
    kinds = []
    for kind, (room, listed) in KINDS.items():
        lines = []
        for name, component in getattr(import_module(room), listed).items():
            if kind == "data":  # an entry of a table, which names what has the options
                description = describe(kind, name, component.options, "", str(component))
            else:
                description = describe(kind, name, component, f"{component.__module__}.{component.__qualname__}")
            lines.append(f"{json.dumps(name)}: {json.dumps(to_json(description), ensure_ascii=False)}")
        kinds.append(f"{json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def to_json(description: Description) -> dict[str, Any]:
    listed = {
        option.name: {"type": type_to_json(option.type), "help": option.help}
        | ({} if option.default is REQUIRED else {"default": option.default})
        for option in description.options.values()
    }
    told = {"path": description.path, "about": description.about, "paper": description.paper, "options": listed}
    return told | ({"traits": description.traits} if description.traits else {})


def type_to_json(to: Any) -> Any:
    """``int`` as "int", ``Annotated[float, Range(above=0)]`` as {"type": "float", "above": 0}, and so on."""
    origin, arguments = get_origin(to), get_args(to)
    if origin is Annotated:
        (allowed,) = (item for item in arguments[1:] if isinstance(item, Range))
        bounds = {bound: number for bound, number in asdict(allowed).items() if number is not None}
        return {"type": type_to_json(arguments[0])} | bounds
    if origin in (Union, types.UnionType):
        return {"any of": [type_to_json(choice) for choice in arguments]}
    if origin is Literal:
        return {"one of": arguments}
    if origin is tuple:
        return {"several": type_to_json(arguments[0])}
    return next(name for name, simple in SIMPLE.items() if simple is to)


if __name__ == "__main__":
    FILE.write_text(introspect(), encoding="utf-8")
