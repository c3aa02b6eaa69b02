"""What a client keeps between messages: in Flower's context, and on the site's own disk where it asks for that.

A ClientApp is a new process for every message. Flower carries ``context.state`` from one to the next and never sends it
anywhere, but it lives in the SuperNode's memory: a SuperNode that is started again has lost it. With
``--node-config "keep='/var/lib/comity'"`` it is on disk as well, and the site's own model beside it: in a folder for
each client, which nobody but the SuperNode's user can read.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from safetensors import safe_open
from torch import Tensor

from comity._write import atomically
from comity.engine import ClientState, write_tensors
from comity.flower._wire import Arrays, tensors


class Keep:
    """One client's private state in one run."""

    def __init__(self, context: Context, run: str, cid: int) -> None:
        self.context, self.name = context, f"keep-{run}"
        folder = context.node_config.get("keep")
        self.folder = Path(str(folder)).expanduser() / f"client-{cid}" if folder is not None else None

    def read(self) -> ClientState | None:
        """``None`` when the client was never asked anything. On disk is what a SuperNode before this one left."""
        if self.name in self.context.state.array_records:
            return ClientState.of(tensors(self.context.state.array_records[self.name]))
        file = None if self.folder is None else self.folder / f"{self.name}.safetensors"
        if file is None or not file.exists():
            return None
        with safe_open(file, framework="pt") as opened:
            if (opened.metadata() or {}).get("run") != str(self.context.run_id):
                return None  # another run starts from nothing
            # cloned, so that it lies in memory as it did before
            return ClientState.of({name: opened.get_tensor(name).clone() for name in opened.keys()})  # noqa: SIM118

    def write(self, state: ClientState) -> None:
        if self.folder is not None:
            self._save(self.folder / f"{self.name}.safetensors", state.flat())
        self.context.state[self.name] = Arrays().record(state.flat(secret=True))

    def save_model(self, method: str, state_dict: Mapping[str, Tensor]) -> None:
        """The site's own model under the network's own names, for the site itself to use; Local's is beside it."""
        if self.folder is not None:
            self._save(self.folder / f"model-{method.lower()}.safetensors", state_dict)

    def _save(self, file: Path, tensors: Mapping[str, Tensor]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.parent.chmod(0o700)
        with atomically(file) as part:
            os.close(os.open(part, os.O_CREAT | os.O_WRONLY, 0o600))  # before there is anything in it
            write_tensors(part, tensors, {"run": str(self.context.run_id)})
            part.chmod(0o600)
