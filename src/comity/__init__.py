"""comity: personalised federated learning that measures which clients gain or are harmed, and protects them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from comity._errors import ComityError

if TYPE_CHECKING:
    from comity import compare, data, deploy, files, guard, methods, nn, report, results, rules
    from comity.compare import load
    from comity.config import Config
    from comity.data import Dataset, Federation, federate
    from comity.deploy import FederatedClassifier, load_model
    from comity.engine import Callback, run
    from comity.methods import Method
    from comity.probe import ask
    from comity.rules import Rule
    from comity.studies import join, study

__version__ = "0.1.0"  # the only place with the version; pyproject.toml reads it from here
# fmt: off
__all__ = [
    "ComityError", "Config", "FederatedClassifier", "__version__", "ask", "join", "load", "load_model", "run", "study",
    "Callback", "Dataset", "Federation", "Method", "Rule", "federate",
    "compare", "data", "deploy", "files", "guard", "methods", "nn", "report", "results", "rules",
]
# fmt: on

_HOMES = {
    "Callback": "comity.engine",
    "Config": "comity.config",
    "Dataset": "comity.data",
    "FederatedClassifier": "comity.deploy",
    "Federation": "comity.data",
    "Method": "comity.methods",
    "Rule": "comity.rules",
    "ask": "comity.probe",
    "federate": "comity.data",
    "join": "comity.studies",
    "load": "comity.compare",
    "load_model": "comity.deploy",
    "run": "comity.engine",
    "study": "comity.studies",
}


def __getattr__(name: str) -> Any:
    # torch takes a second to import; `comity --help` should not wait for it
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in __all__:
        return import_module(f"comity.{name}")
    raise AttributeError(f"module 'comity' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
