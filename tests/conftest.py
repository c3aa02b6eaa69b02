"""What tests share: a federation small enough to train in a blink."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import TINY

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell that starts pytest in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that tests can interrupt the processes they start


@pytest.fixture
def tiny() -> dict[str, Any]:
    return dict(TINY)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def data_dir() -> Path:
    """The real data sets, where they are to be had."""
    if "COMITY_DATA" not in os.environ:
        pytest.skip("COMITY_DATA is not set: the real data sets are not here")
    return Path(os.environ["COMITY_DATA"])
