"""Rules: combine client updates into one update, computed from their Gram matrix and with a certificate.

>>> import torch
>>> from comity.rules import ConFREE
>>> ConFREE(c=0.5)(torch.tensor([[1.0, 0.0], [-0.5, 1.0]]))
tensor([0.6676, 1.0015])
"""

from comity._options import Count, CountOrZero, NonNegative, Positive, Range, Share
from comity.rules._products import lower_products, mirrored, piece_width
from comity.rules._rows import LONGEST_SQUARE, SketchedUpdates, Updates
from comity.rules._rule import Combination, GramBlock, Outcome, Rule, SolverWarning, advice_on_products, check_sketch
from comity.rules._sketch import LayerSketch, Sketch
from comity.rules._step import ServerStep
from comity.rules._updates import ClientUpdates, DroppedWarning, Members, TriedSteps, capped
from comity.rules.auto import Auto
from comity.rules.cagrad import CAGrad
from comity.rules.calm import CALM
from comity.rules.confree import ConFREE
from comity.rules.confree_length import ConFREELength
from comity.rules.diagnose import ConflictRate, against, conflict_rate, cosines, harm, improvement, loss_change
from comity.rules.fair_descent import FairDescent, evening
from comity.rules.fedfv import FedFV
from comity.rules.fedmgda_plus import FedMGDAPlus
from comity.rules.geometric_median import GeometricMedian
from comity.rules.mean import Mean
from comity.rules.mgda import MGDA
from comity.rules.projection import COSINE_ROUNDING, Projection
from comity.rules.protect import protected_directions
from comity.rules.released import ReleasedConFREE
from comity.rules.solvers import Solution, min_norm
from comity.rules.task_arithmetic import TaskArithmetic
from comity.rules.ties import TIES
from comity.rules.torchjd import TorchJD
from comity.rules.upgrad import UPGrad

RULES: dict[str, type[Rule]] = {
    "Mean": Mean,
    "Projection": Projection,
    "ConFREE": ConFREE,
    "ConFREE-released": ReleasedConFREE,
    "ConFREE-length": ConFREELength,
    "CALM": CALM,
    "MGDA": MGDA,
    "FedMGDA+": FedMGDAPlus,
    "FedFV": FedFV,
    "FairDescent": FairDescent,
    "UPGrad": UPGrad,
    "CAGrad": CAGrad,
    "GeometricMedian": GeometricMedian,
    "TaskArithmetic": TaskArithmetic,
    "TIES": TIES,
    "TorchJD": TorchJD,
    "Auto": Auto,
}
"""Rules by their command-line name."""

# fmt: off
__all__ = [
    # inputs and outputs
    "Updates", "Combination", "Outcome", "DroppedWarning", "SolverWarning",
    # the rules
    "Mean", "Projection", "ConFREE", "CALM", "MGDA", "FedMGDAPlus", "FedFV", "FairDescent", "TorchJD",
    "ConFREELength", "ReleasedConFREE", "UPGrad", "CAGrad", "GeometricMedian", "TaskArithmetic", "TIES", "Auto",
    "RULES",
    # the server's step with a rule's update
    "ServerStep",
    # bounds on one client's weight
    "capped",
    # diagnosis: which client hurts which
    "conflict_rate", "ConflictRate", "cosines", "harm", "improvement", "against", "loss_change", "COSINE_ROUNDING",
    # personal directions
    "protected_directions",
    # for a rule of your own
    "Rule", "GramBlock", "Solution", "min_norm", "evening",
    # ranges for options
    "Count", "CountOrZero", "NonNegative", "Positive", "Share", "Range",
    # updates held in another form
    "ClientUpdates", "Members", "TriedSteps", "lower_products", "mirrored", "piece_width", "LONGEST_SQUARE",
    # rules on sketches of updates
    "Sketch", "LayerSketch", "SketchedUpdates", "check_sketch", "advice_on_products",
]
# fmt: on
