import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data() -> Path:
    """The folder of real data sets; tests that need it are skipped where there is none."""
    folder = os.environ.get("COMITY_DATA")
    if not folder:
        pytest.skip("COMITY_DATA is not set: no real data sets on this machine")
    return Path(folder)


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may reach for the network, whether the extra is installed or not."""
    monkeypatch.setattr("comity._datasets.hub_installed", lambda: False)
