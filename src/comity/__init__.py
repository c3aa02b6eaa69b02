"""comity: personalised federated learning that does no harm."""

from typing import TYPE_CHECKING, Any

from comity._errors import ComityError

if TYPE_CHECKING:
    from comity.config import Config
    from comity.engine import run

__version__ = "0.1.0"
__all__ = ["ComityError", "Config", "__version__", "run"]


def __getattr__(name: str) -> Any:
    # torch takes a second to import; `comity --help` should not wait for it
    if name == "run":
        from comity.engine import run

        return run
    if name == "Config":
        from comity.config import Config

        return Config
    raise AttributeError(f"module 'comity' has no attribute {name!r}")
