"""A real SuperLink and real SuperNodes on this machine's loopback, all of which end with the test."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

BIN = Path(sys.executable).parent
DOCS = Path(__file__).parents[2] / "docs"
LIMIT = 900.0
"""Seconds that a test may take, on a machine that has other things to do."""

T = TypeVar("T")


def commands(program: str, page: str = "how-to/deploy.md") -> list[list[str]]:
    """The commands of a page that start with ``program``: what is written is what is tried."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", (DOCS / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for language, block in fenced if language in ("", "sh") for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(program)]


def connection(page: str = "how-to/deploy.md") -> str:
    """The page's connection to a SuperLink."""
    (found,) = re.findall(r"```toml\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    return str(found)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Deployment:
    """Starts programs, each in a process group of its own with its output in a file, and ends them on the way out."""

    def __init__(self, folder: Path, nodes: int = 3, limit: float = LIMIT) -> None:
        self.folder, self.limit = folder, limit
        self.until = time.monotonic() + limit
        self.port, *self.node_ports = free_ports(1 + nodes)
        self.home = folder / "flwr-home"
        self.home.mkdir()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.env = os.environ | {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": str(self.home),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def __enter__(self) -> "Deployment":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self.running):
            self.kill(name)
        self.kill_all()  # what has left its group all the same
        if kind is not None:
            for file in sorted(self.folder.glob("*.log")):
                print(f"--- {file.name}\n{file.read_text()[-3000:]}")

    def start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """The program and whatever it started, at once."""
        process = self.running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)

    def kill_all(self, program: str = "") -> int:
        """Every process of ours (it has our own FLWR_HOME) of this program, at once; how many there were."""
        ours, found = f"FLWR_HOME={self.home}\0".encode(), 0
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_it = program.encode() in (process / "cmdline").read_bytes()
                if is_it and ours in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
                    found += 1
        return found

    def call(self, command: list[str], fails: bool = False) -> str:
        """A program that ends by itself; what it said. What it left running ends with it."""
        self.start("call", command)
        process = self.running["call"]
        try:
            process.wait(timeout=max(1.0, self.until - time.monotonic()))
        finally:
            self.kill("call")
        said = self.log("call")
        (self.folder / "call.log").unlink()
        assert (process.returncode != 0) == fails, f"{shlex.join(command)}\n{said}"
        return said

    def log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def wait(self, what: str, found: Callable[[], T]) -> T:
        """The first true answer; every program must be alive while we wait for it."""
        while time.monotonic() < self.until:
            if answer := found():
                return answer
            for name, process in self.running.items():
                assert process.poll() is None, f"{name} ended with {process.returncode}:\n{self.log(name)[-3000:]}"
            time.sleep(0.2)
        raise AssertionError(f"{what} did not come within {self.limit:g} s")

    def replaced(self, command: list[str], other: Mapping[str, str] | None = None) -> list[str]:
        """A command of the page for this machine."""
        here = {"server.example.org": "localhost", "0.0.0.0": "127.0.0.1", "8000": str(self.port)} | dict(other or {})
        pattern = re.compile("|".join(map(re.escape, here)))
        return [pattern.sub(lambda match: here[match[0]], word) for word in command]


def start_superlink(here: Deployment, *options: str) -> None:
    """A SuperLink without TLS, known as ``here``; perhaps again."""
    (here.home / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{here.port}"\ninsecure = true\n')
    loopback, before = ["--insecure", "--host", "127.0.0.1", "--port", str(here.port)], here.log("superlink")
    here.start("superlink", ["flower-superlink", *loopback, "--disable-runtime-dependency-installation", *options])
    started = "startup complete"
    here.wait("the SuperLink", lambda: here.log("superlink").count(started) > before.count(started))


def node(here: Deployment, cid: int, nodes: int, more: str = "") -> list[str]:
    """The command that starts a SuperNode."""
    address = ["--insecure", "--superlink", f"127.0.0.1:{here.port}", "--port", str(here.node_ports[cid])]
    return ["flower-supernode", *address, "--node-config", f"partition-id={cid} num-partitions={nodes} {more}".strip()]


def start_all(here: Deployment, nodes: int, more: str = "", *options: str) -> None:
    """A SuperLink and all SuperNodes; ``{cid}`` in ``more`` is the client's number."""
    start_superlink(here, *options)
    for cid in range(nodes):
        here.start(f"node-{cid}", node(here, cid, nodes, more.format(cid=cid)))
    for cid in range(nodes):
        here.wait(f"node {cid}", lambda cid=cid: "SuperNode ID" in here.log(f"node-{cid}"))
