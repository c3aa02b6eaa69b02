"""Rules: how the updates of clients become one, from their Gram matrix and with a certificate.

>>> import torch
>>> from comity.rules import ConFREE
>>> ConFREE(c=0.5)(torch.tensor([[1.0, 0.0], [-0.5, 1.0]]))
tensor([0.6676, 1.0015])
"""

from comity._options import Range
from comity.rules._rows import LONGEST_SQUARE, Updates, capped, gram_matrix, piece_width
from comity.rules._rule import Combination, GramBlock, Outcome, Rule, SolverWarning
from comity.rules._server_step import ServerStep
from comity.rules._updates import ClientUpdates, DroppedWarning, Members
from comity.rules.calm import CALM
from comity.rules.confree import ConFREE
from comity.rules.diagnose import ConflictRate, LossChange, conflict_rate, cosines, harm, improvement, loss_change
from comity.rules.fair_descent import FairDescent, evening
from comity.rules.fedfv import FedFV
from comity.rules.fedmgda_plus import FedMGDAPlus
from comity.rules.mean import Mean
from comity.rules.mgda import MGDA
from comity.rules.projection import COSINE_ROUNDING, Projection
from comity.rules.protect import Protected, protected_directions
from comity.rules.released import ReleasedConFREE
from comity.rules.solvers import Solution, min_norm
from comity.rules.torchjd import TorchJD

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
    "Updates", "Combination", "Outcome", "DroppedWarning", "SolverWarning",
    # the rules
    "Mean", "Projection", "ConFREE", "CALM", "MGDA", "FedMGDAPlus", "FedFV", "FairDescent", "TorchJD",
    "ReleasedConFREE", "RULES",
    # what the server does with a rule's update
    "ServerStep",
    # how much a stranger counts
    "capped",
    # who hurts whom
    "conflict_rate", "ConflictRate", "cosines", "harm", "improvement", "loss_change", "LossChange", "COSINE_ROUNDING",
    # personal directions
    "protected_directions", "Protected",
    # for a rule of your own
    "Rule", "Range", "GramBlock", "Solution", "min_norm", "evening",
    # for updates that are held in another form
    "ClientUpdates", "Members", "gram_matrix", "piece_width", "LONGEST_SQUARE",
]
# fmt: on
