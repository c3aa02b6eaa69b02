"""The command line: one file a command, each a function whose arguments are the command's options.

A command reads its options, calls a room and prints what came of it. Nothing heavy is imported before that, so that
help and errors come at once.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import cast

from comity._errors import unknown
from comity.commands._command import Command

COMMANDS = (
    *("run", "study", "report", "table", "reproduce", "inspect", "aggregate", "flower", "data", "list"),
    "completion",
)

__all__ = ["COMMANDS", "Command", "command", "find"]


def find(name: str) -> Command:
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    module = import_module(f"comity.commands.{name}")
    return cast(Command, module.COMMAND)


def command(name: str, arguments: Sequence[str]) -> int:
    """Do what ``comity NAME ARGUMENTS…`` does and return its exit code; bad input is a ``ComityError``."""
    return find(name)(arguments)
