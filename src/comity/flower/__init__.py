"""The same methods and rules on Flower, beyond one machine.

In an app of your own, change the strategy and nothing else::

    strategy = ConFREE(fraction_train=0.5)             # was: FedAvg(fraction_train=0.5)
    strategy = WithRule(CALM(), strategy=FedAdam())     # any rule around any strategy

Or run a whole method of comity over a grid: ``comity flower new FOLDER`` writes the app, docs/deploy.md tells the rest.
"""

from comity._errors import ComityError, install

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ComityError(f"flower is not installed: {install('flower')}") from error

from comity.flower._client import OwnData, client_app
from comity.flower._link import GridLink, Patience
from comity.flower._new import write_app
from comity.flower._server import server_app
from comity.flower._strategy import (
    CALM,
    CRAFT,
    IMTLG,
    MGDA,
    AlignedMTL,
    Auto,
    CAGrad,
    CenteredClipping,
    ConFREE,
    FairDescent,
    FedFV,
    FedMGDAPlus,
    GeometricMedian,
    Krum,
    MaxFL,
    Mean,
    NashMTL,
    Projection,
    ReleasedConFREE,
    TorchJD,
    UPGrad,
    WithRule,
)

# fmt: off
__all__ = [
    # drop-in strategies
    "WithRule", "Mean", "Projection", "ConFREE", "ReleasedConFREE", "CALM", "MGDA", "FedMGDAPlus", "FedFV",
    "FairDescent", "CRAFT", "MaxFL", "UPGrad", "CAGrad", "NashMTL", "AlignedMTL", "IMTLG", "Krum", "GeometricMedian",
    "CenteredClipping", "TorchJD", "Auto",
    # whole methods
    "client_app", "server_app", "OwnData", "GridLink", "Patience", "write_app",
]
# fmt: on
