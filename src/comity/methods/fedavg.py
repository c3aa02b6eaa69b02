from typing import Literal

from torch import Tensor

from comity.methods._method import Client, Method, Payload


class FedAvg(Method):
    """Train one model together: the average of what the clients made of it.

    McMahan et al., AISTATS 2017. The papers judge different models under this name, hence the option.

    Options:
        personal_model: what a client uses: the global model, what local training made of it last, or its fine-tuning
        finetune_epochs: epochs of that fine-tuning, or none for the run's own number
    """

    personal_model: Literal["global", "post_local", "finetune"] = "global"
    finetune_epochs: int | None = None

    @property
    def moment(self) -> Literal["received", "fitted"]:
        return "fitted" if self.personal_model == "post_local" else "received"

    def personal(self, client: Client, received: Payload) -> Tensor:
        self.load(client, received)
        if self.personal_model == "finetune":
            client.sgd(self.finetune_epochs)
        return client.model.read()
