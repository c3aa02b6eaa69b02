"""Flower's SuperNode, whose processes need no start-up.

For every message Flower starts a new Python, which imports Flower, torch and comity. Here a process that has imported
them waits and is forked, so each message has a process of its own as before, and nothing of it is kept. The SuperNode
also looks for questions more often while a run is under way.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from comity._errors import ComityError

PROGRAMS = {
    "flower-supernode": "flwr.supernode.cli",
    "flower-superexec": "flwr.supercore.cli",
    "flwr-clientapp": "flwr.supernode.cli",
}
"""A SuperNode, what it starts, and what that starts for every message; each is a function of this module."""


def supernode(arguments: Sequence[str]) -> int:
    """Do what ``flower-supernode ARGUMENTS…`` does."""
    if not hasattr(os, "fork"):
        raise ComityError("comity supernode needs a system that forks processes; take flower-supernode")
    mains = {program: getattr(import_module(module), program.replace("-", "_")) for program, module in PROGRAMS.items()}
    commands, forks = socket.socketpair(type=socket.SOCK_DGRAM)
    _replace("flwr.supernode.start_client_internal", time=_Polls(), subprocess=_Forks(forks))
    _replace("flwr.supercore.superexec.executor.subprocess_executor", subprocess=_Forks(forks))
    command: list[str] | None = ["flower-supernode", *arguments]
    node = os.getpid()
    if os.fork() == 0:
        command = _next_command(commands, node)
    if command is not None:
        os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1")
        sys.argv = command
        mains[command[0]]()
    return 0


def _next_command(commands: socket.socket, node: int) -> list[str] | None:
    """Return each command in a fork of its own, and ``None`` once the SuperNode, process ``node``, has ended."""
    commands.settimeout(1.0)
    with suppress(KeyboardInterrupt):
        while os.getppid() == node:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            with suppress(TimeoutError):
                command: list[str] = json.loads(commands.recv(1 << 16))
                if os.fork() == 0:
                    np.random.seed()  # Flower's noise comes from it: two forks must not draw the same
                    return command
    return None


class _Polls:
    """In place of ``time`` in the SuperNode's loop, which looks for answers every 0.5 s and for questions every 3 s.

    An answer comes into this process's own memory, so looking costs nothing. A question is looked for again after as
    long as the SuperNode has waited already, 3 s at most.
    """

    def __init__(self, least: float = 0.05) -> None:
        self._least = self._idle = least

    def sleep(self, seconds: float) -> None:
        self._idle = self._least if seconds < 1 else min(2 * self._idle, seconds)
        time.sleep(self._idle)


class _Forks:
    """In place of ``subprocess`` where Flower starts a program."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self, commands: socket.socket) -> None:
        self._commands = commands

    def Popen(self, command: list[str], **options: Any) -> None:
        if command[0] in PROGRAMS:
            self._commands.send(json.dumps(command).encode())
        else:
            subprocess.Popen(command, **options)


def _replace(module: str, **names: object) -> None:
    """Give a module of Flower other names; a version that lacks them is rejected."""
    inside = vars(import_module(module))
    if missing := names.keys() - inside.keys():
        raise ComityError(f"{module} of this version of Flower has no {', '.join(missing)}; take flower-supernode")
    inside.update(names)
