"""The guard: each client decides on its own held-out samples what it uses after training.

- ``mixture``: weights that mix the predictions of the client's own model with those of others; in expectation the
  log-loss is at most that of the client's own model, which has not seen the held-out samples either, + (K−1)/(n+1).
- ``certificate``: a test, with a finite-sample guarantee, that a model is not worse than a reference by more than a
  margin.
- ``guards``: the guards of a run: ``--guard mixture``, ``--guard certified`` and ``--guard selection``.
- ``online``: the guard after deployment, with labels that arrive later; ``feedback`` is its state.
- ``extension``: the guard in a run. The engine loads it if a run has a guard; everything else needs no torch.
"""

from comity.guard.certificate import (
    Certificate,
    Evidence,
    Verdict,
    acceptance_limits,
    betting_test,
    certify,
    exact_test,
)
from comity.guard.feedback import OnlineState, Report
from comity.guard.guards import GUARDS, Certified, Choice, Guard, HeldOut, Mixture, Selection
from comity.guard.mixture import Posterior, excess_risk_bound, mixture_weights, posterior, regret_bound
from comity.guard.online import FEEDBACK, OnlineGuard, bets, log_capital, opened, read

# fmt: off
__all__ = [
    # the guards
    "GUARDS", "Guard", "Mixture", "Certified", "Selection", "HeldOut", "Choice",
    # the mixture
    "mixture_weights", "posterior", "Posterior", "regret_bound", "excess_risk_bound",
    # the certificate
    "certify", "Certificate", "Verdict", "Evidence", "exact_test", "betting_test", "acceptance_limits",
    # after deployment
    "OnlineGuard", "OnlineState", "Report", "bets", "log_capital", "FEEDBACK", "opened", "read",
]
# fmt: on
