"""Methods: how clients learn and what they share. One file each.

To write one, subclass :class:`Method` in a file of yours and name it on the command line
(``--method mypkg.mymod.MyMethod``); docs/methods.md shows how.
"""

from comity.methods._method import WHOLE, Client, Method, Payload, Server
from comity.methods.ditto import Ditto
from comity.methods.fedavg import FedAvg
from comity.methods.fedper import FedPer
from comity.methods.fedprox import FedProx
from comity.methods.fedrep import FedRep
from comity.methods.lgfedavg import LGFedAvg
from comity.methods.local import Local

METHODS = {
    "Local": Local,
    "FedAvg": FedAvg,
    "FedProx": FedProx,
    "FedPer": FedPer,
    "FedRep": FedRep,
    "LG-FedAvg": LGFedAvg,
    "Ditto": Ditto,
}
"""By the name on the command line."""

__all__ = [
    "METHODS",
    "WHOLE",
    "Client",
    "Ditto",
    "FedAvg",
    "FedPer",
    "FedProx",
    "FedRep",
    "LGFedAvg",
    "Local",
    "Method",
    "Payload",
    "Server",
]
