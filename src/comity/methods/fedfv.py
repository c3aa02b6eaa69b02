from comity import rules
from comity._options import CountOrZero, Share
from comity.methods.fedavg import FedAvg
from comity.rules import Rule


class FedFV(FedAvg):
    """FedAvg with fair averaging: conflicting updates are projected off each other before averaging.

    Use: when fairness between clients matters and some clients are often absent.

    Paper: Wang et al., IJCAI 2021.

    Equation: The server applies the rule FedFV: each update is projected off the updates it conflicts with, in order of
    rising loss of the received model. The updates of the clients with the largest losses stay unchanged. The mean is
    then projected off the last updates of absent clients and given the length of the plain mean.

    Options:
        alpha: share of the clients whose updates stay unchanged: those with the largest losses
        tau: number of rounds for which the last update of an absent client is used
    """

    alpha: Share = 0.1
    tau: CountOrZero = 1

    def own_rule(self) -> Rule:
        return rules.FedFV(alpha=self.alpha, tau=self.tau)
