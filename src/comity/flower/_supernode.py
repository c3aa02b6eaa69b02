"""Flower's SuperNode with processes that need no start-up.

For every message Flower starts a new Python, which imports Flower, torch and comity. Here a process that has already
imported them waits and is forked, so each message still has its own process that keeps nothing. A message also waits
less: Flower polls for questions every 3 s, for work every second and for answers every 0.5 s.
"""

import gc
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
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
"""A SuperNode, the program that it starts once, and the one that this starts for every message, by module."""


def supernode(arguments: Sequence[str]) -> int:
    """Run ``flower-supernode ARGUMENTS…`` with forked processes."""
    if not hasattr(os, "fork"):
        raise ComityError("comity supernode needs a system that forks processes; take flower-supernode")
    mains = {name: vars(import_module(module))[name.replace("-", "_")] for name, module in PROGRAMS.items()}
    import_module("httpcore")  # Flower imports it with the first request
    commands, forks = socket.socketpair(type=socket.SOCK_DGRAM)
    bell, node = _Bell(), os.getpid()
    loop = "flwr.supernode.start_client_internal"
    push = bell.before(vars(import_module(loop))["_push_messages"])
    _replace(loop, time=_Polls(), subprocess=_Forks(forks), _push_messages=push)
    _replace("flwr.supercore.superexec.run_superexec", time=bell)
    _replace("flwr.supercore.superexec.executor.subprocess_executor", subprocess=_Forks(forks))
    command: list[str] | None = ["flower-supernode", *arguments]
    gc.freeze()  # neither a fork nor its end garbage-collects the imports
    if os.fork() == 0:
        command = _next_command(commands, node)
    if command is not None:
        sys.argv = command
        mains[command[0]]()
    return 0


def _next_command(commands: socket.socket, node: int) -> list[str] | None:
    """Return each command in its own fork, and ``None`` once the SuperNode, process ``node``, has ended."""
    commands.settimeout(1.0)
    with suppress(KeyboardInterrupt):
        while os.getppid() == node:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            with suppress(TimeoutError):
                command: list[str] = json.loads(commands.recv(1 << 16))
                if os.fork() == 0:
                    np.random.seed()  # noqa: NPY002 - Flower draws noise from it, and no two forks may draw the same
                    return command
    return None


class _Forks:
    """Replaces ``subprocess`` where Flower starts programs."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self, commands: socket.socket) -> None:
        self._commands = commands

    def Popen(self, command: list[str], **options: Any) -> None:
        if command[0] in PROGRAMS and not options:
            self._commands.send(json.dumps(command).encode())
        else:
            subprocess.Popen(command, **options)


class _Polls:
    """Replaces ``time`` in the SuperNode's loop.

    Answers arrive in this process's memory, so polling for them costs nothing. The server is asked for a question again
    after as long as the SuperNode has already waited, and after Flower's 3 s at most.
    """

    LEAST = 0.05

    def __init__(self) -> None:
        self._idle = self.LEAST

    def sleep(self, seconds: float) -> None:
        self._idle = self.LEAST if seconds < 1 else min(2 * self._idle, seconds)
        time.sleep(self._idle)


class _Bell:
    """Replaces ``time`` in the SuperExec's loop: the SuperNode wakes it when a question has arrived."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def before(self, function: Callable[..., None]) -> Callable[..., None]:
        """Ring, then call the ``function``."""

        def ringing(*arguments: Any, **named: Any) -> None:
            os.write(self._write_end, b"!")
            function(*arguments, **named)

        return ringing

    def sleep(self, seconds: float) -> None:
        if select.select([self._read_end], [], [], seconds)[0]:
            os.read(self._read_end, 1)


def _replace(module: str, **names: object) -> None:
    """Replace names in a module of Flower; rejects a version that lacks them."""
    inside = vars(import_module(module))
    if missing := names.keys() - inside.keys():
        raise ComityError(f"{module} of this version of Flower has no {', '.join(missing)}; take flower-supernode")
    inside.update(names)
