from torch import Tensor

from comity._options import CountOrZero, NonNegative
from comity.methods._method import Client, Message, Method, Reply


class Ditto(Method):
    """Train a global model by FedAvg, and a personal model per client that stays near the global one.

    Use: when you need a global model too, or when some clients may send bad updates.

    Paper: Li et al., ICML 2021, Algorithm 1.

    Equation: The global model w is trained by FedAvg. The personal model v is trained by v ← v − lr (∇f(v) + lam (v −
    w)), where w is the received global model.

    Options:
        lam: strength of the pull towards the global model (0 = Local); the paper tunes it between 0.05 and 2
        personal_epochs: epochs of training the personal model (none = the run's --epochs)
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
