from typing import Literal

from comity._options import CountOrZero
from comity.methods._method import Client, Message, Method, Reply


class FedRep(Method):
    """Share the body, keep the head: fit the head first, then the body.

    Paper: Collins et al., ICML 2021, Algorithm 1.

    Equation: The head h_i learns on the body b as received, h_i ← h_i − lr ∇_h f_i(b, h_i); then the body learns under
    that head, b_i ← b_i − lr ∇_b f_i(b_i, h_i). The server combines the b_i.

    Departures:
        - The head has one epoch, as in common code and so in the ConFREE papers; the paper has ten.

    Options:
        head_epochs: epochs of the head before the body is trained; the paper takes 5 to 10, common code one
        personal_model: what a client uses: its head on the newest body, or what local training made of both last
    """

    head_epochs: CountOrZero = 1
    personal_model: Literal["received", "post_local"] = "received"

    shared = ("body",)

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        client.sgd(self.head_epochs, "head")
        client.sgd(None, "body")
        return self.reply(client)
