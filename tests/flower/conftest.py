"""Flower's noise kept out, before anything of it is imported."""

import logging
import os
import warnings
from collections.abc import Iterator

import pytest

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

with warnings.catch_warnings():
    # typer, which Flower brings along, imports what click means to remove
    warnings.filterwarnings("ignore", message="'click.utils", category=DeprecationWarning)
    import typer  # noqa: F401


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "processes: starts SuperLink and SuperNodes; needs COMITY_PROCESS_TESTS=1")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What Flower's log says."""
    logger = logging.getLogger("flwr")
    before, logger.propagate = logger.propagate, True
    yield caplog
    logger.propagate = before
