"""The ledger of a client's answers: with the same secrets no question of a round is answered twice.

Two answers to one question, or two sums of the same updates that differ by one client, would reveal what masks hide. So
a site records each answer before it gives it, in a folder beside its secrets that survives restarts and new runs: one
empty file per answer, whose name can be created only once.
"""

import os
from pathlib import Path

from comity._errors import ComityError
from comity._write import to_disk, write_text
from comity.privacy._keys import Rejected, hashed

NOISE = "noise"
"""File with the noise multiplier of a run."""


class Ledger:
    """The answers that one client's secrets were used for; without a folder, those of this process."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._taken: set[Path] = set()

    def claim(self, run: str, *answer: str, noise: float = 0.0) -> None:
        """Record an answer in a run, with the noise of its sum; rejects an answer that was recorded before."""
        self._claim(Path(_name(run), "-".join(answer)))
        if noise and self.folder is not None:
            file = self.folder / _name(run) / NOISE
            if not file.exists():
                write_text(file, repr(noise))

    def claim_model(self, round: int, sent: bytes) -> None:
        """Record that the client trains this model in this round, in any run: its update would be the same."""
        self._claim(Path("models", f"{round}-{sent.hex()}"))

    def _claim(self, entry: Path) -> None:
        if self.folder is None:
            if entry in self._taken:
                raise Rejected.because("again")
            self._taken.add(entry)
            return
        file = self.folder / entry
        try:
            if is_new := not file.parent.exists():
                file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            for folder in (file.parent, self.folder, self.folder.parent)[: 3 if is_new else 1]:
                to_disk(folder)
        except FileExistsError as error:
            raise Rejected.because("again") from error
        except OSError as error:
            raise ComityError(f"{self.folder} cannot be written to: a client notes there what it answered") from error

    def spent_before(self, run: str) -> float:
        """Sum of 1/z² over all masked sums with noise z in other runs (composition of Gaussian noise)."""
        if self.folder is None or not self.folder.exists():
            return 0.0
        noisy = [file.parent for file in self.folder.glob(f"*/{NOISE}") if file.parent.name != _name(run)]
        return sum(len(list(each.glob("*-mask"))) / float((each / NOISE).read_text()) ** 2 for each in noisy)


def _name(run: str) -> str:
    return hashed(run.encode()).hex()[:32]
