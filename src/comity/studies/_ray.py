"""Runs on the nodes of a Ray cluster: each is a task, retried on another node if its node is lost.

Nodes that share the study's folder write to it, like processes of this machine. Other nodes use the same path on their
own disk, and send back the folder of a finished run.
"""

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from uuid import uuid4

import torch

from comity import __version__
from comity._errors import ComityError, install, one_line
from comity._write import locked, write_text
from comity.results import RunFolder, schema
from comity.studies._crew import Inbox, Message, work

VERSIONS = (__version__, torch.__version__)
"""Versions of comity and torch, which must agree on all nodes for equal results."""
Files = dict[str, bytes]  # a folder's files, by relative path


@dataclass(frozen=True)
class Place:
    """Where the study is, and a token in its folder by which a node recognises the same folder."""

    cwd: str
    study: str
    token: str
    versions: tuple[str, str] = VERSIONS

    def shared(self) -> bool:
        with suppress(OSError):
            return (Path(self.study) / schema.TOKEN).read_text() == self.token
        return False


class Cluster:
    """The Ray cluster at an address, one that Ray finds, or a new local one."""

    def __init__(self, address: str | None, study: Path, workers: int, gpu: bool) -> None:
        """``workers``: CPUs per run; ``gpu``: whether it needs a GPU."""
        try:
            import ray
        except ImportError:
            raise ComityError(f"--on ray needs Ray: {install('ray')}") from None
        self.ray = ray
        self.place = Place(os.getcwd(), str(study), uuid4().hex)
        self._joined = not ray.is_initialized()
        if self._joined:
            try:
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ComityError(f"--on ray: there is no Ray cluster to join ({one_line(error, 200)})") from error
        write_text(study / schema.TOKEN, self.place.token)
        installed = (sys.prefix, sys.base_prefix)  # nodes have their own
        own = os.pathsep.join(path for path in sys.path if path and not path.startswith(installed))
        self.run: Any = ray.remote(
            num_cpus=workers,
            num_gpus=int(gpu),
            num_returns="streaming",
            max_retries=0,  # the study retries a run, which resumes from its checkpoint
            runtime_env={"env_vars": {"PYTHONPATH": own, "OMP_NUM_THREADS": "1"}},
        )(run_remote)

    def close(self) -> None:
        (Path(self.place.study) / schema.TOKEN).unlink(missing_ok=True)
        if self._joined:
            self.ray.shutdown()

    def hire(self, inbox: Inbox) -> "RayWorker":
        return RayWorker(self, inbox)


class RayWorker:
    """Does a run as a task on the cluster."""

    tries = 4

    def __init__(self, cluster: Cluster, inbox: Inbox) -> None:
        self.cluster, self.inbox = cluster, inbox
        self._task: Any = None

    def tell(self, order: Any) -> None:
        if order == "stop":
            self.close()
        else:
            self._task = self.cluster.run.remote(order, self.cluster.place, None)
            Thread(target=self._listen, args=(order,), daemon=True).start()

    def _listen(self, order: dict[str, Any]) -> None:
        ray, place = self.cluster.ray, self.cluster.place
        try:
            message: Message = {}
            while "end" not in message:
                message = ray.get(next(self._task))
                if message.get("wants"):
                    baselines = {path: packed(Path(path)) for path in baselines_of(order)}
                    self._task = self.cluster.run.remote(order, place, baselines)
                    continue
                if (files := message.pop("files", None)) is not None:
                    unpack(files, Path(order["config"]["out"]), Path(place.study))
                self.inbox.put((self, message))
        except (ray.exceptions.RayError, StopIteration, OSError) as error:
            what = one_line(f"{type(error).__name__}: {error}", 300)
            self.inbox.put((self, {"end": "failed", "gone": True, "error": f"its node was lost: {what}"}))

    def close(self) -> None:
        """Stop the run, which must not continue writing; it can be resumed like any killed one."""
        if self._task is not None:
            with suppress(self.cluster.ray.exceptions.RayError, ValueError, TypeError):
                self.cluster.ray.cancel(self._task, force=True)


def baselines_of(order: dict[str, Any]) -> list[str]:
    """Folders of the local baselines of a run."""
    return [path for name in ("reference", "control") if (path := str(order["config"][name])) not in ("auto", "none")]


def run_remote(order: dict[str, Any], place: Place, baselines: dict[str, Files] | None) -> Iterator[Message]:
    """On a node: do one run under the study's path and yield its messages, the last one with its files if necessary."""
    if place.versions != VERSIONS:
        differ = "a node has comity {} and torch {}, the study {} and {}".format(*VERSIONS, *place.versions)
        yield {"end": "failed", "error": differ, "traceback": ""}
        return
    os.makedirs(place.cwd, exist_ok=True)
    os.chdir(place.cwd)
    out, shared = Path(order["config"]["out"]), place.shared()
    missing = [] if shared else [path for path in baselines_of(order) if not RunFolder(path).finished]
    if missing and baselines is None:
        yield {"wants": "the local baselines that the run is compared with"}
        return
    with locked(Path(place.study) / schema.LOCK, "", lambda: False) if missing else nullcontext():
        for path in missing:  # another task may have done the same
            if not RunFolder(path).finished and baselines is not None:
                unpack(baselines[path], Path(path), Path(place.study))
    messages: SimpleQueue[Message] = SimpleQueue()
    Thread(target=work, args=(order, messages.put, lambda: False), daemon=True).start()
    while "end" not in (message := messages.get()):
        yield message
    if not shared and message["end"] == "done":
        message["files"] = packed(out)
        shutil.rmtree(out)
    yield message


def packed(folder: Path) -> Files:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != schema.LOCK)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def unpack(files: Files, folder: Path, study: Path) -> None:
    """Create a folder with these files atomically: they are first written elsewhere in the study's folder."""
    with TemporaryDirectory(dir=study, prefix=schema.FETCHED) as temporary:
        for name, content in files.items():
            path = Path(temporary, "run", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        Path(temporary, "run").rename(folder)
