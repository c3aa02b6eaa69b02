from typing import Annotated

from comity import rules
from comity._options import Positive, Range, Share
from comity.methods.fedavg import FedAvg
from comity.rules import Rule


class FedMGDAPlus(FedAvg):
    """FedAvg with a common descent: normalised updates are combined so that nobody's loss should rise.

    Paper: Hu et al., IEEE TNSE 2022.

    Equation: theta ← theta + server_lr Σ λ_i Δ_i/‖Δ_i‖ with λ = argmin ‖Σ λ_i Δ_i/‖Δ_i‖‖² on the simplex, each λ_i
    within eps of the client's share of the samples (the rule FedMGDA+).

    Departures:
        - The paper's server_lr is tuned and decays; here it is constant unless ``server_lr_decay`` is given. The FedPG
          papers' platform multiplies by the decaying local rate: give that for server_lr and --lr-decay's value.
        - A client uses the global model, as in the paper and in FedAvg here. The FedPG papers judge what local training
          made of it: ``personal_model="post_local"``.

    Options:
        eps: how far a client's weight may be from its share of the samples; 1 is MGDA, 0 the mean of directions, and
            the paper takes one of {0, 0.05, 0.1, 0.5, 1}
        server_lr: length of the step; that of one normalised update is 1
        server_lr_decay: what server_lr is multiplied by after each round
        norm_restore: give the step the length of the mean update instead
    """

    eps: Share = 0.1
    server_lr: Positive = 1.0
    server_lr_decay: Annotated[float, Range(above=0, most=1)] = 1.0
    norm_restore: bool = False

    def own_rule(self) -> Rule:
        return rules.FedMGDAPlus(
            eps=self.eps, lr=self.server_lr, lr_decay=self.server_lr_decay, norm_restore=self.norm_restore
        )
