"""comity: personalised federated learning that does no harm."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from comity._errors import ComityError

if TYPE_CHECKING:
    from comity.config import Config
    from comity.engine import run
    from comity.results import load
    from comity.studies import study

__version__ = "0.1.0"
__all__ = ["ComityError", "Config", "__version__", "load", "run", "study"]

_HOMES = {"Config": "comity.config", "load": "comity.results", "run": "comity.engine", "study": "comity.studies"}


def __getattr__(name: str) -> Any:
    # torch takes a second to import; `comity --help` should not wait for it
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'comity' has no attribute {name!r}")
