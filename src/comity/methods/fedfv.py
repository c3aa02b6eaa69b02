from typing import Literal

from comity import rules
from comity._errors import ComityError
from comity.methods.fedavg import FedAvg
from comity.rules import Rule


class FedFV(FedAvg):
    """FedAvg with fair averaging: conflicting updates are projected off each other before they are averaged.

    Wang et al., IJCAI 2021 (rule FedFV): by rising loss of the received model, each update is projected off those that
    it conflicts with, the worst-off clients' excepted; the mean is then projected off the last updates of absent
    clients and given the length of the plain mean. The absent are those of the tau rounds before, as in the paper; the
    released code's window is one later. A client uses what its last training made of the global model, as in the FedPG
    papers.

    Options:
        alpha: share of the clients with the largest losses whose updates are left as they are
        tau: rounds for which absent clients are remembered
        personal_model: what a client uses: the global model, what local training made of it last, or its fine-tuning
        finetune_epochs: epochs of fine-tuning, or none for the run's own number
    """

    alpha: float = 0.1
    tau: int = 1
    personal_model: Literal["global", "post_local", "finetune"] = "post_local"

    def check(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ComityError(f"method.alpha must be at least 0 and at most 1, got {self.alpha}")
        if self.tau < 0:
            raise ComityError(f"method.tau must be at least 0, got {self.tau}")

    def own_rule(self) -> Rule:
        return rules.FedFV(self.alpha, self.tau)
