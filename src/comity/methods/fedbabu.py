from typing import Literal

from torch import Tensor

from comity._options import CountOrZero
from comity.methods._method import WHOLE, Client, Message, Method, Reply


class FedBABU(Method):
    """Learn a body together under a random head that nobody trains; each client fits its own head to it at the end.

    Paper: Oh, Kim and Yun, ICLR 2022.

    Equation: Under the common initial head h, b_i ← b_i − lr ∇_b f_i(b_i, h), and the server combines the b_i. To use
    the model, a client trains (b, h) on its own data for a few epochs. The model for everybody is (b, h).

    Departures:
        - A client is judged after its fine-tuning whenever it is judged, not only after the last round; what
          fine-tuning made is forgotten.

    Options:
        finetune: what a client trains before it uses the model; the paper finds little difference
        finetune_epochs: epochs of that; 0 for the common model as it is
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
