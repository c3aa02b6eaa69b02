"""What the tests of files share."""

from pathlib import Path

import pytest
from checkpoints import Saved


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path)
