import torch
from torch import Tensor

from comity.methods._messages import Message, Reply
from comity.methods._method import Client, Method, Server


class Control(Message):
    control: Tensor  # c, the mean of all clients' control variates, for the parameters in theta


class ControlReply(Reply):
    change: Tensor  # change of the client's control variate


class SCAFFOLD(Method[Control, ControlReply]):
    """FedAvg with control variates, which correct the drift of each client's local steps.

    Use: when local models drift apart and twice the traffic is acceptable.

    Paper: Karimireddy et al., ICML 2020, Algorithm 1.

    Equation: The client starts from y = theta and makes K steps y ← y − lr (∇f_i(y) − c_i + c), where c_i is its
    control variate and c the server's. Then c_i⁺ = c_i − c + (theta − y)/(K lr), which is the mean of the gradients
    ∇f_i(y) over the steps (option II). The server applies the rule to y − theta and updates c ← c + 1/N Σ_i (c_i⁺ −
    c_i), summed over the clients of the round.

    N is the number of all clients, so c is always the mean of all c_i. All control variates start at 0.

    Departures:
        - A client's new control variate is the mean of its gradients in the round. With plain SGD this equals the
          paper's option II. With momentum, weight decay or Adam, the formula of option II does not give the mean
          gradient, so comity does not use it.
        - Option I (the gradient of all samples at the global model) is left out, because it costs another pass over the
          data.
        - The paper's server learning rate is the option ``--server-lr`` of the run.
        - The paper weights all clients equally in the average of the models. To do the same, give ``--rule.by
          uniform``. Changes of control variates always count equally, as in the paper.
    """

    own_steps = True

    def start(self, client: Client) -> None:
        super().start(client)
        client.keep["control"] = torch.zeros_like(client.model.read("shared")[: client.model.layout("shared").size])

    def fit(self, client: Client, received: Control) -> ControlReply:
        self.load(client, received)
        model, old, losses = client.model, client.keep["control"], list[Tensor]()
        with model.training("shared") as params, client.optimiser(params) as steps:
            correction = _like(params, received.control - old)
            total, gradients = [torch.zeros_like(param) for param in params], model.gradients("shared")
            for x, y in client.batches():
                loss, grads = gradients(x, y)
                torch._foreach_add_(total, grads)
                torch._foreach_add_(grads, correction)
                steps.step(grads)
                losses.append(loss)
        if not losses:
            return self.reply(client, change=torch.zeros_like(old))
        client.train_loss = float(torch.stack(losses).mean())
        client.keep["control"] = torch.cat([each.reshape(-1) for each in total]) / len(losses)
        return self.reply(client, change=client.keep["control"] - old)

    def begin(self, server: Server) -> None:
        server.store["control"] = torch.zeros_like(server.theta[: server.layout.size])

    def send(self, server: Server, cid: int) -> Control:
        return Control(theta=server.theta, control=server.store["control"])

    def objection(self, server: Server, cid: int, reply: ControlReply) -> str | None:
        if reply.change.shape != server.store["control"].shape:
            return "sent a change of its control variate that is of another shape"
        return None

    def merge(self, server: Server, replies: dict[int, ControlReply]) -> None:
        server.theta = server.aggregate(replies).theta
        changes = torch.stack([replies[cid].change for cid in sorted(replies)])
        server.store["control"] = server.store["control"] + changes.sum(0) / len(server.clients)


def _like(params: list[Tensor], vector: Tensor) -> list[Tensor]:
    """Views of a vector in the shapes of these parameters."""
    pieces = torch.split(vector, [param.numel() for param in params])
    return [piece.view(param.shape) for piece, param in zip(pieces, params, strict=True)]
