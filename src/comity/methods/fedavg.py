from typing import Literal

from torch import Tensor

from comity._options import CountOrZero
from comity.methods._method import Client, Message, Method


class FedAvg(Method):
    """Train one global model: the average of the clients' models after local training.

    Use: as the first baseline, or when clients have similar data.

    Paper: McMahan et al., AISTATS 2017.

    Equation: theta ← Σ_i n_i/n · theta_i, where theta_i is client i's model after local training from theta, n_i its
    number of samples, and n the sum of the n_i.

    Options:
        personal_model: model that a client uses: the global model, its model after local training, or the fine-tuned
            global model
        finetune_epochs: epochs of fine-tuning (none = the run's --epochs)
    """

    personal_model: Literal["global", "post_local", "finetune"] = "global"
    finetune_epochs: CountOrZero | None = None

    def personal(self, client: Client, received: Message) -> Tensor:
        if self.personal_model != "finetune":
            return super().personal(client, received)
        self.load(client, received)
        client.sgd(self.finetune_epochs)
        return client.model.read()
