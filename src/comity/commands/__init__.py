"""The command line: one file per command, each a function whose arguments are the command's options.

A public module of this package is a command: its function is wrapped as ``COMMAND``. A command reads its options, calls
the package that does the work, and prints the result. Heavy imports come last, so that help and errors appear at once.
"""

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import cast

from comity._catalogue import option_for
from comity._errors import ComityError, unknown
from comity._hints import command_hint
from comity.commands._command import Command

COMMANDS = tuple(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))

__all__ = ["COMMANDS", "Command", "command", "find", "overview"]


def find(name: str) -> Command:
    if name not in COMMANDS:
        if hint := command_hint(name):
            raise ComityError(f"unknown command {name!r}; did you mean {hint}?")
        if hint := option_for(name):
            raise ComityError(f"unknown command {name!r}; in comity run, {hint}")
        raise unknown("command", name, COMMANDS)
    module = import_module(f"comity.commands.{name}")
    return cast(Command, module.COMMAND)


def overview() -> list[Command]:
    """All commands in the order of the help page."""
    return sorted(map(find, COMMANDS), key=lambda each: each.order)


def command(name: str, arguments: Sequence[str]) -> int:
    """Run ``comity NAME ARGUMENTS…`` and return its exit code; bad input raises a ``ComityError``."""
    return find(name)(arguments)
