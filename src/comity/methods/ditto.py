from torch import Tensor

from comity._options import CountOrZero, NonNegative
from comity.methods._method import Client, Message, Method, Reply


class Ditto(Method):
    """A FedAvg model for everybody, and beside it a personal model of each client that is pulled towards it.

    Paper: Li et al., ICML 2021, Algorithm 1.

    Equation: v ← v − lr (∇f(v) + lam (v − w)), where v is the personal model and w the global one as received.

    Options:
        lam: strength of the pull of the personal model towards the received one; 0 is Local, and the paper tunes it
            around {0.05, 0.1, 0.2, 1, 2}
        personal_epochs: epochs of the personal model, or none for the run's own number
    """

    lam: NonNegative = 1.0
    personal_epochs: CountOrZero | None = None

    def start(self, client: Client) -> None:
        super().start(client)
        client.keep["v"] = client.model.read()

    def fit(self, client: Client, received: Message) -> Reply:
        reply = super().fit(client, received)
        client.model.write(client.keep["v"])
        client.sgd(self.personal_epochs, "shared", pull=(received.theta, self.lam))
        client.keep["v"] = client.model.read()
        return reply

    def personal(self, client: Client, received: Message) -> Tensor:
        return client.keep["v"]
