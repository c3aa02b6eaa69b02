from typing import Literal

from comity import rules
from comity._errors import ComityError
from comity.methods.fedavg import FedAvg
from comity.rules import Rule


class FedMGDAPlus(FedAvg):
    """FedAvg with a common descent: normalised updates are combined so that nobody's loss should rise.

    Hu et al., IEEE TNSE 2022: theta ← theta + lr Σ λ_i Δ_i/‖Δ_i‖ with λ = argmin ‖Σ λ_i Δ_i/‖Δ_i‖‖² on the simplex, λ_i
    within eps of the clients' shares (rule FedMGDA+). The paper's eps is one of {0, 0.05, 0.1, 0.5, 1}, its lr tuned
    and decaying. A client uses what its last training made of the global model, as in the FedPG papers.

    Options:
        eps: how far a client's weight may be from its share of the samples; 1 is MGDA, 0 the mean of directions
        server_lr: length of the step; that of one normalised update is 1
        norm_restore: give the step the length of the mean update instead
        personal_model: what a client uses: the global model, what local training made of it last, or its fine-tuning
        finetune_epochs: epochs of fine-tuning, or none for the run's own number
    """

    eps: float = 0.1
    server_lr: float = 1.0
    norm_restore: bool = False
    personal_model: Literal["global", "post_local", "finetune"] = "post_local"

    def check(self) -> None:
        if not 0 <= self.eps <= 1:
            raise ComityError(f"method.eps must be at least 0 and at most 1, got {self.eps}")
        if self.server_lr <= 0:
            raise ComityError(f"method.server_lr must be above 0, got {self.server_lr}")

    def own_rule(self) -> Rule:
        return rules.FedMGDAPlus(self.eps, lr=self.server_lr, norm_restore=self.norm_restore)
