from comity import rules
from comity._options import CountOrZero, Share
from comity.methods.fedavg import FedAvg
from comity.rules import Rule


class FedFV(FedAvg):
    """FedAvg with fair averaging: conflicting updates are projected off each other before they are averaged.

    Use: when fairness between clients matters and some clients are often absent.

    Paper: Wang et al., IJCAI 2021.

    Equation: The rule FedFV. In order of rising loss of the received model, each update is projected off the updates it
    conflicts with, except those of the worst-off clients. The mean is then projected off the last updates of absent
    clients and given the length of the plain mean.

    Departures:
        - Absent clients are those of the previous tau rounds, as in the paper; the released code's window is one round
          later.
        - A client uses the global model, as in the paper.

    Options:
        alpha: share of clients with the largest losses whose updates stay unchanged
        tau: number of rounds for which absent clients are remembered
    """

    alpha: Share = 0.1
    tau: CountOrZero = 1

    def own_rule(self) -> Rule:
        return rules.FedFV(alpha=self.alpha, tau=self.tau)
