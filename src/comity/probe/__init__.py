"""A quick estimate of whether to join, by logistic regression, and of columns and classes that sites use differently.

The package is not called ``ask`` because ``comity.ask`` is the function.
"""

from comity.probe._ask import SEEDS, Answer, ask, compared, findings
from comity.probe._calibration import Similar, calibration, similar
from comity.probe._disagreement import Finding
from comity.probe._sites import AtSites, ask_sites

# fmt: off
__all__ = [
    "SEEDS", "Answer", "AtSites", "Finding", "Similar", "ask", "ask_sites", "calibration", "compared", "findings",
    "similar",
]
# fmt: on
