from typing import Literal

from comity._options import CountOrZero
from comity.methods._method import Client, Message, Method, Reply


class FedRep(Method):
    """Share the body, keep a personal head: train the head first, then the body.

    Use: as the first personalised method to try, with the guard.

    Paper: Collins et al., ICML 2021, Algorithm 1.

    Equation: The head h_i is trained on the received body b, h_i ← h_i − lr ∇_h f_i(b, h_i). Then the body is trained
    under that head, b_i ← b_i − lr ∇_b f_i(b_i, h_i). The server combines the b_i.

    Departures:
        - The head has one epoch, as in public code and in the ConFREE papers; the FedRep paper has ten.

    Options:
        head_epochs: epochs of the head before the body is trained; the paper takes 5 to 10, public code 1
        personal_model: model that a client uses: its head on the newest body, or both as local training left them
    """

    head_epochs: CountOrZero = 1
    personal_model: Literal["received", "post_local"] = "received"

    shared = ("body",)

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        client.sgd(self.head_epochs, "head")
        client.sgd(None, "body")
        return self.reply(client)
