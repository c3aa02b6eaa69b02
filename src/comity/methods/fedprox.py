from comity._options import NonNegative
from comity.methods._method import Client, Message, Reply
from comity.methods.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg, in which local training is pulled back to the received model.

    Paper: Li et al., MLSys 2020.

    Equation: The local loss gains mu/2 · ‖theta − theta_g‖², where theta_g is the model as received.

    Departures:
        - The paper's inexact solves (gamma) are left out, as in every public implementation.

    Options:
        mu: strength of the pull towards the received model; 0 is FedAvg, and the paper tunes it in {0.001, 0.01, 0.1,
            1}
    """

    mu: NonNegative = 0.01

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        client.sgd(None, "shared", pull=(received.theta, self.mu))
        return self.reply(client)
