"""The same methods and rules on Flower, on several machines.

In your own app, change only the strategy. Every rule is a strategy here, under its own name::

    strategy = ConFREE(fraction_train=0.5)             # was: FedAvg(fraction_train=0.5)
    strategy = WithRule(CALM(), strategy=FedAdam())     # any rule around any strategy

Or run a whole method of comity: ``comity flower new FOLDER`` writes the app; see docs/how-to/deploy.md.
"""

from typing import Any

from comity._errors import ComityError, install

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ComityError(f"flower is not installed: {install('flower')}") from error

from comity.flower._app import write_app
from comity.flower._client import client_app
from comity.flower._link import GridLink, Patience
from comity.flower._own import OwnData, SiteData, Tables
from comity.flower._server import server_app
from comity.flower._strategy import WithRule, strategy_of
from comity.flower._supernode import supernode

# fmt: off
__all__ = [
    "WithRule", "client_app", "server_app", "SiteData", "OwnData", "Tables", "GridLink", "Patience", "write_app",
    "supernode",
]
# fmt: on


def __getattr__(name: str) -> Any:
    """The strategy of a rule, by the rule's class name."""
    return strategy_of(name)
