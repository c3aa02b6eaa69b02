from typing import Annotated

from comity import rules
from comity._options import Positive, Range, Share
from comity.methods.fedavg import FedAvg
from comity.rules import Rule


class FedMGDAPlus(FedAvg):
    """FedAvg with a common descent direction: normalised updates, weighted to increase no client's loss.

    Use: when fairness between clients matters more than the mean.

    Paper: Hu et al., IEEE TNSE 2022.

    Equation: theta ← theta + server_lr Σ λ_i Δ_i/‖Δ_i‖ with λ = argmin ‖Σ λ_i Δ_i/‖Δ_i‖‖² on the simplex, each λ_i
    within eps of the client's share of the samples (the rule FedMGDA+).

    Departures:
        - The paper's server_lr is tuned and decays. Here it is constant unless ``server_lr_decay`` is given.
        - The FedPG papers' platform uses the decaying local learning rate. To do the same, set server_lr to --lr and
          server_lr_decay to --lr-decay.
        - The FedPG papers evaluate the model after local training, as with ``personal_model="post_local"``.

    Options:
        eps: largest distance of a client's weight from its share of the samples (1 = MGDA, 0 = mean of directions); the
            paper takes one of {0, 0.05, 0.1, 0.5, 1}
        server_lr: length of the step, in units of one normalised update
        server_lr_decay: factor on server_lr per round
        norm_restore: give the step the length of the mean update, instead of server_lr
    """

    eps: Share = 0.1
    server_lr: Positive = 1.0
    server_lr_decay: Annotated[float, Range(above=0, most=1)] = 1.0
    norm_restore: bool = False

    def own_rule(self) -> Rule:
        return rules.FedMGDAPlus(
            eps=self.eps, lr=self.server_lr, lr_decay=self.server_lr_decay, norm_restore=self.norm_restore
        )
