from typing import Literal

from torch import Tensor

from comity._options import CountOrZero
from comity.methods._method import WHOLE, Client, Message, Method, Reply


class FedBABU(Method):
    """Train a shared body under a fixed random head; each client fine-tunes before it uses the model.

    Use: when new clients will join later and can fine-tune.

    Paper: Oh, Kim and Yun, ICLR 2022.

    Equation: The common initial head h stays fixed: b_i ← b_i − lr ∇_b f_i(b_i, h). The server combines the b_i. To use
    the model, a client trains (b, h) on its own data for a few epochs. The global model is (b, h).

    Departures:
        - A client fine-tunes before every evaluation, not only after the last round. The fine-tuned model is used for
          evaluation only: the next round starts from the shared body again.

    Options:
        finetune: what a client fine-tunes: the whole model, or the head only; in the paper the difference is small
        finetune_epochs: epochs of fine-tuning (0 = use the global model)
    """

    finetune: Literal["whole", "head"] = "whole"
    finetune_epochs: CountOrZero = 5

    shared = ("body",)

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        client.sgd(None, "body")
        return self.reply(client)

    def personal(self, client: Client, received: Message) -> Tensor:
        self.load(client, received)
        client.sgd(self.finetune_epochs, *(WHOLE if self.finetune == "whole" else ("head",)))
        return client.model.read()

    def general(self, client: Client, received: Message) -> Tensor | None:
        self.load(client, received)
        return client.model.read()
