from comity._options import NonNegative
from comity.methods._method import Client, Message, Reply
from comity.methods.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps local training near the received model.

    Use: when local models drift apart, for example with dissimilar clients and many local epochs.

    Paper: Li et al., MLSys 2020.

    Equation: The local loss gains mu/2 · ‖theta − theta_g‖², where theta_g is the received model.

    Departures:
        - Clients train for a fixed number of steps. In the paper a client may stop early, at an inexact solution
          (gamma); no public implementation does this.

    Options:
        mu: strength of the proximal term (0 = FedAvg); the paper tunes it in {0.001, 0.01, 0.1, 1}
    """

    mu: NonNegative = 0.01

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        client.sgd(None, "shared", pull=(received.theta, self.mu))
        return self.reply(client)
