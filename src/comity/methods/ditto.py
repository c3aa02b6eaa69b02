from torch import Tensor

from comity._errors import ComityError
from comity.methods._method import Client, Method, Payload


class Ditto(Method):
    """A FedAvg model for everybody and beside it a personal one on a leash.

    Li et al., ICML 2021, Algorithm 1: v ← v − lr (∇f(v) + lam (v − w)), w as received. lam = 0 is Local; the paper
    tunes it around {0.05, 0.1, 0.2, 1, 2}.

    Options:
        lam: strength of the pull of the personal model towards the received one
        personal_epochs: epochs of the personal model, or none for the run's own number
    """

    lam: float = 1.0
    personal_epochs: int | None = None

    def check(self) -> None:
        if self.lam < 0:
            raise ComityError(f"method.lam must be at least 0, got {self.lam}")

    def start(self, client: Client) -> None:
        super().start(client)
        client.keep["v"] = client.model.read()

    def fit(self, client: Client, received: Payload) -> Payload:
        reply = super().fit(client, received)
        client.model.write(client.keep["v"])
        client.sgd(self.personal_epochs, "shared", pull=(received["theta"], self.lam))
        client.keep["v"] = client.model.read()
        return reply

    def personal(self, client: Client, received: Payload) -> Tensor:
        return client.keep["v"]
