from typing import Any, Literal

from comity._options import CountOrZero
from comity.methods._method import WHOLE, Client, Message, Method, Reply


class FedRep(Method):
    """Share the body and keep a personal head. Train the head first, then the body.

    Use: when clients differ a lot.

    Paper: Collins et al., ICML 2021, Algorithm 1.

    Equation: The head h_i is trained on the received body b, h_i ← h_i − lr ∇_h f_i(b, h_i). Then the body is trained
    under that head, b_i ← b_i − lr ∇_b f_i(b_i, h_i). The server combines the b_i.

    Departures:
        - FedRep has no global model, but the supplement of the FedPG paper reports the accuracy of one. For this, the
          code of the FedPG authors combines the clients' whole models. ``share_head`` does the same; then the rule acts
          on the heads too.

    Options:
        head_epochs: epochs of training the head, before the body is trained; the paper takes 5 to 10, public code 1
        personal_model: model that a client uses: its head on the newest body, or head and body as they were after its
            last local training
        share_head: send the head too, so that a global model can be evaluated; clients do not use the combined head
    """

    head_epochs: CountOrZero = 1
    personal_model: Literal["received", "post_local"] = "received"
    share_head: bool = False

    shared = ("body",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share_head:
            self.shared = WHOLE  # type: ignore[misc, assignment]

    def start(self, client: Client) -> None:
        super().start(client)
        self.keep_head(client)

    def keep_head(self, client: Client) -> None:
        if self.share_head:  # else it is the personal part
            client.keep["head"] = client.model.read("head")

    def load(self, client: Client, received: Message) -> None:
        super().load(client, received)
        if self.share_head:
            client.model.write(client.keep["head"], "head")

    def reply(self, client: Client, **more: Any) -> Reply:
        self.keep_head(client)
        return super().reply(client, **more)

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        client.sgd(self.head_epochs, "head")
        client.sgd(None, "body")
        return self.reply(client)
