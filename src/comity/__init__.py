"""comity: personalised federated learning that does no harm."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from comity._errors import ComityError

if TYPE_CHECKING:
    from comity import data, files, methods, nn, report, results, rules
    from comity.config import Config
    from comity.engine import run
    from comity.results import load
    from comity.studies import study

__version__ = "0.1.0"  # the only place where it stands; pyproject.toml reads it from here
# fmt: off
__all__ = [
    "ComityError", "Config", "__version__", "load", "run", "study",
    "data", "files", "methods", "nn", "report", "results", "rules",
]
# fmt: on

_HOMES = {"Config": "comity.config", "load": "comity.results", "run": "comity.engine", "study": "comity.studies"}


def __getattr__(name: str) -> Any:
    # torch takes a second to import; `comity --help` should not wait for it
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in __all__:
        return import_module(f"comity.{name}")
    raise AttributeError(f"module 'comity' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
