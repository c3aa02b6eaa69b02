from comity import rules
from comity._options import CountOrZero, Share
from comity.methods.fedavg import FedAvg
from comity.rules import Rule


class FedFV(FedAvg):
    """FedAvg with fair averaging: conflicting updates are projected off each other before they are averaged.

    Paper: Wang et al., IJCAI 2021.

    Equation: The rule FedFV. By rising loss of the received model, each update is projected off those that it conflicts
    with, except for the updates of the worst-off clients. The mean is then projected off the last updates of absent
    clients and given the length of the plain mean.

    Departures:
        - The absent clients are those of the tau rounds before, as in the paper; the window of the released code is one
          round later.
        - A client uses the global model, as in the paper and in FedAvg here.

    Options:
        alpha: share of the clients with the largest losses whose updates are left as they are
        tau: rounds for which absent clients are remembered
    """

    alpha: Share = 0.1
    tau: CountOrZero = 1

    def own_rule(self) -> Rule:
        return rules.FedFV(alpha=self.alpha, tau=self.tau)
