"""A client's guard against being worse off than alone: mathematics on its own held-out samples.

- ``mixture``: weights that mix the predictions of the client's own model with those of others; the expected log-loss is
  at most that of the client's own model + (K−1)/(n+1).
- ``certificate``: a test, with a finite-sample guarantee, that a model is not worse than the client's own by more than
  a margin.
- ``guards``: what a client does with both: ``--guard mixture``, ``certified`` and ``averaged``.
- ``harm``: afterwards, which clients are worse off by more than chance.

Nothing here needs torch, and nothing leaves the client.
"""

from comity.guard.certificate import (
    Certificate,
    Evidence,
    Verdict,
    acceptance_limits,
    bernstein_test,
    betting_test,
    certify,
    exact_test,
)
from comity.guard.guards import GUARDS, Averaged, Certified, Choice, Guard, Mixture
from comity.guard.harm import (
    Harm,
    benjamini_hochberg,
    expected_calibration_error,
    harm_beyond_chance,
    mcnemar,
    resampled,
)
from comity.guard.mixture import (
    Posterior,
    excess_risk_bound,
    mixture_weights,
    posterior,
    progressive_weights,
    regret_bound,
)

__all__ = [
    # what a client does
    "GUARDS",
    "Guard",
    "Mixture",
    "Certified",
    "Averaged",
    "Choice",
    # the mixture
    "mixture_weights",
    "posterior",
    "progressive_weights",
    "Posterior",
    "regret_bound",
    "excess_risk_bound",
    # the certificate
    "certify",
    "Certificate",
    "Verdict",
    "Evidence",
    "exact_test",
    "betting_test",
    "bernstein_test",
    "acceptance_limits",
    # harm told from chance
    "harm_beyond_chance",
    "Harm",
    "mcnemar",
    "resampled",
    "benjamini_hochberg",
    "expected_calibration_error",
]
