"""Rules: how the updates of clients become one, from their Gram matrix and with a certificate.

>>> import torch
>>> from comity.rules import ConFREE
>>> ConFREE(c=0.5)(torch.tensor([[1.0, 0.0], [-0.5, 1.0]]))
tensor([0.6676, 1.0015])
"""

from typing import TYPE_CHECKING, Any

from comity.rules._rule import Block, Outcome, Rule, SolverWarning, Weights
from comity.rules._solvers import Solution
from comity.rules._updates import DroppedWarning, Updates
from comity.rules.calm import CALM
from comity.rules.confree import ConFREE
from comity.rules.diagnose import ConflictRate, conflict_rate, cosines, harm, improvement
from comity.rules.fair_descent import FairDescent
from comity.rules.fedfv import FedFV
from comity.rules.fedmgda_plus import FedMGDAPlus
from comity.rules.mean import Mean
from comity.rules.mgda import MGDA
from comity.rules.projection import Projection
from comity.rules.protect import Protected, protected_directions
from comity.rules.released import ReleasedConFREE
from comity.rules.torchjd import TorchJD

if TYPE_CHECKING:
    from comity.files import aggregate as aggregate_files

RULES: dict[str, type[Rule]] = {
    "Mean": Mean,
    "Projection": Projection,
    "ConFREE": ConFREE,
    "ConFREE-released": ReleasedConFREE,
    "CALM": CALM,
    "MGDA": MGDA,
    "FedMGDA+": FedMGDAPlus,
    "FedFV": FedFV,
    "FairDescent": FairDescent,
    "TorchJD": TorchJD,
}
"""By the name on the command line."""

# fmt: off
__all__ = [
    # what goes in and what comes out
    "Updates", "Outcome", "DroppedWarning", "SolverWarning",
    # the rules
    "Mean", "Projection", "ConFREE", "CALM", "MGDA", "FedMGDAPlus", "FedFV", "FairDescent", "TorchJD",
    "ReleasedConFREE", "RULES",
    # who hurts whom
    "conflict_rate", "ConflictRate", "cosines", "harm", "improvement",
    # personal directions
    "protected_directions", "Protected",
    # for a rule of your own
    "Rule", "Block", "Solution", "Weights",
    # checkpoints in files
    "aggregate_files",
]
# fmt: on


def __getattr__(name: str) -> Any:
    # rules know nothing of files; only who asks for this has them imported
    if name == "aggregate_files":
        from comity.files import aggregate

        return aggregate
    raise AttributeError(f"module 'comity.rules' has no attribute {name!r}")
