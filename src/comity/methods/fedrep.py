from comity.methods._method import Client, Method, Payload


class FedRep(Method):
    """Share the body, keep the head: fit the head first, then the body.

    Collins et al., ICML 2021, Algorithm 1. The paper fits the head for 5 to 10 epochs, common code for one.

    Options:
        head_epochs: epochs of the head before the body is trained
    """

    head_epochs: int = 1

    shared = ("body",)

    def fit(self, client: Client, received: Payload) -> Payload:
        self.load(client, received)
        client.sgd(self.head_epochs, "head")
        client.sgd(None, "body")
        return self.reply(client)
