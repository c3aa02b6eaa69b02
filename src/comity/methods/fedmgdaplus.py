from typing import Annotated

from comity import rules
from comity._options import Positive, Range, Share
from comity.methods.fedavg import FedAvg
from comity.rules import Rule


class FedMGDAPlus(FedAvg):
    """FedAvg with normalised updates, weighted in favour of the worst-off client.

    Use: when fairness between clients matters more than the mean.

    Paper: Hu et al., IEEE TNSE 2022.

    Equation: theta ← theta + server_lr Σ λ_i Δ_i/‖Δ_i‖ with λ = argmin ‖Σ λ_i Δ_i/‖Δ_i‖‖² on the simplex, where each
    λ_i is within eps of the client's share of the samples (the rule FedMGDA+).

    Departures:
        - In the paper server_lr is tuned and decays. Here it is constant unless ``server_lr_decay`` is given.
        - The code of the FedPG papers takes the decaying local learning rate as server_lr. To do the same, set
          server_lr to the value of ``--lr`` and server_lr_decay to that of ``--lr-decay``.
        - The FedPG papers evaluate the model after local training, as ``personal_model="post_local"`` does.

    Options:
        eps: largest difference between a client's weight and its share of the samples (1 = MGDA, 0 = mean of the
            normalised updates); the paper takes one of {0, 0.05, 0.1, 0.5, 1}
        server_lr: length of a normalised update, which is the maximum length of the step
        server_lr_decay: factor by which server_lr is multiplied after each round
        norm_restore: use the length of the uniform mean as server_lr
    """

    eps: Share = 0.1
    server_lr: Positive = 1.0
    server_lr_decay: Annotated[float, Range(above=0, most=1)] = 1.0
    norm_restore: bool = False

    def own_rule(self) -> Rule:
        return rules.FedMGDAPlus(
            eps=self.eps, lr=self.server_lr, lr_decay=self.server_lr_decay, norm_restore=self.norm_restore
        )
