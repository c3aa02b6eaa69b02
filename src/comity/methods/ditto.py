from torch import Tensor

from comity._options import CountOrZero, NonNegative
from comity.methods._method import Client, Message, Method, Reply


class Ditto(Method):
    """Train a FedAvg model and, beside it, a personal model per client that is pulled towards it.

    Use: when a global model is needed as well, or when robustness to bad updates matters.

    Paper: Li et al., ICML 2021, Algorithm 1.

    Equation: v ← v − lr (∇f(v) + lam (v − w)), where v is the personal model and w the received global model.

    Options:
        lam: strength of the pull towards the global model (0 = Local); the paper tunes it around {0.05, 0.1, 0.2, 1, 2}
        personal_epochs: epochs of the personal model (none = the run's --epochs)
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
