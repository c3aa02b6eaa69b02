"""Flower's noise kept out, before anything of it is imported."""

import os
import warnings

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

with warnings.catch_warnings():
    # typer, which Flower brings along, imports what click means to remove
    warnings.filterwarnings("ignore", message="'click.utils", category=DeprecationWarning)
    import typer  # noqa: F401
