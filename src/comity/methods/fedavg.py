from typing import Literal

from torch import Tensor

from comity._options import CountOrZero
from comity.methods._method import Client, Message, Method


class FedAvg(Method):
    """Train one model together: the average of what the clients made of it.

    Paper: McMahan et al., AISTATS 2017.

    Equation: theta ← Σ_i n_i/n · theta_i, where theta_i is what client i with its n_i samples made of theta.

    Departures:
        - Papers that compare with FedAvg judge different models under this name; ``personal_model`` chooses one.

    Options:
        personal_model: what a client uses: the global model, what local training made of it last, or its fine-tuning
        finetune_epochs: epochs of that fine-tuning, or none for the run's own number
    """

    personal_model: Literal["global", "post_local", "finetune"] = "global"
    finetune_epochs: CountOrZero | None = None

    def personal(self, client: Client, received: Message) -> Tensor:
        if self.personal_model != "finetune":
            return super().personal(client, received)
        self.load(client, received)
        client.sgd(self.finetune_epochs)
        return client.model.read()
