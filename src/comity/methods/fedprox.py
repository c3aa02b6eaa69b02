from comity._errors import ComityError
from comity.methods._method import Client, Payload
from comity.methods.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg with a leash: local training is pulled back to the received model.

    Li et al., MLSys 2020: the local loss gains mu/2 · ‖theta − theta_g‖². Inexact solves (gamma) are left out, as in
    every public implementation. The paper tunes mu in {0.001, 0.01, 0.1, 1}; mu = 0 is FedAvg.

    Options:
        mu: strength of the pull towards the received model
        personal_model: what a client uses: the global model, what local training made of it last, or its fine-tuning
        finetune_epochs: epochs of fine-tuning, or none for the run's own number
    """

    mu: float = 0.01

    def check(self) -> None:
        if self.mu < 0:
            raise ComityError(f"method.mu must be at least 0, got {self.mu}")

    def fit(self, client: Client, received: Payload) -> Payload:
        self.load(client, received)
        client.sgd(None, "shared", pull=(received["theta"], self.mu))
        return self.reply(client)
