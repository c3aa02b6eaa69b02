from typing import Annotated

import torch
from torch import Tensor

from comity._layout import Layout
from comity._options import Count, NonNegative, Positive, Range
from comity.data import Split
from comity.methods._method import Client, Message, Method, Reply
from comity.nn import Model, gradients_of

WINDOW = 10  # number of losses that must agree before the first training of the weights ends
MOST = 100  # passes after which it ends in any case: a large rate can oscillate forever


class FedALA(Method):
    """FedAvg in which each client learns how much of the global head to take, per parameter.

    Use: when the global head helps some clients and harms others.

    Paper: Zhang et al., AAAI 2023.

    Equation: A client adapts the received model θ_g before it trains or uses it: the last ``top`` modules become θ_i +
    (θ_g − θ_i) ⊙ W, where θ_i is its model after its last training. In its first round a client has no θ_i and uses θ_g
    unchanged.

    The weights W start at 1 and are kept between rounds. They are trained on a random ``share`` of the training data: W
    ← clip(W − rate · ∇L ⊙ (θ_g − θ_i), 0, 1), with ∇L the gradient at the mixed parameters. The first training of W
    repeats passes until the mean losses of the last ten passes have a standard deviation below ``threshold``. Later
    there is one pass per round.

    Departures:
        - The first training of W, the weights of the mixture, stops by the mean loss of each pass; public code uses the
          loss of its last batch. It ends after at most 100 passes, because at a large rate it can oscillate.
        - W is trained on randomly drawn samples; public code uses a contiguous part of the data.
        - While W is trained, BatchNorm uses the received statistics.
        - A client uses the mixture before local training, as in PFLlib. ``--eval-point fitted`` evaluates the model
          after local training. Early in training this can be far better, for example with a transformer.
        - W's steps grow with the square of the difference between the global and the client's own model. If local
          training moves the model little, as with Adam, W stays near 1; then a ``rate`` of 100 helps.

    Options:
        top: number of adapted modules (the paper's p), counted from the last; a weight and its bias are one module
        share: share of the training data used to train the mixing weights W
        rate: learning rate of W (0 = FedAvg)
        threshold: the first training of W stops when the losses of its last ten passes have a standard deviation below
            this
    """

    top: Count = 1
    share: Annotated[float, Range(above=0, most=1)] = 0.8
    rate: NonNegative = 1.0
    threshold: Positive = 0.1

    own_steps = True

    def load(self, client: Client, received: Message) -> None:
        super().load(client, received)
        if "own" in client.keep:
            places, layers = self._adapted(client.model)
            theta = received.theta.clone()
            theta[places] = self._adapt(client, client.keep["own"], theta[places], layers)
            client.model.write(theta, "shared")

    def fit(self, client: Client, received: Message) -> Reply:
        reply = super().fit(client, received)
        client.keep["own"] = reply.theta[self._adapted(client.model)[0]].clone()
        return reply

    @torch.no_grad()
    def _adapt(self, client: Client, mine: Tensor, theirs: Tensor, layers: Layout) -> Tensor:
        """Mix both vectors with weights trained on this round's data."""
        model, data, keep = client.model, client.data.train, client.keep
        model.net.eval()
        first = "weights" not in keep
        W = torch.ones_like(mine) if first else keep["weights"].clone()
        count = max(1, round(self.share * len(data)))
        chosen = torch.randperm(len(data), generator=client.random("ALA"))[:count]
        sample = Split(data.x[chosen], data.y[chosen])
        params = model.parameters()[-len(layers.names) :]
        if all(name.startswith("head.") for name in layers.names):
            # the body is fixed: compute its features once for all passes
            sample = Split(torch.cat([model.features(x) for x in torch.split(sample.x, 512)]), sample.y)
            gradients = model.head_gradients()
        else:
            gradients = gradients_of(model.loss, params)

        apart = theirs - mine
        losses: list[float] = []
        while not losses or (first and not self._converged(losses)):
            values = []
            for x, y in client.batches(1, sample):
                # lerp is θ_i + (θ_g − θ_i) W, and θ_g to the bit where W is 1
                torch._foreach_copy_(params, layers.split(torch.lerp(mine, theirs, W)))
                loss, grads = gradients(x, y)
                slope = torch.cat([grad.reshape(-1) for grad in grads[-len(params) :]]) * apart
                W.sub_(slope, alpha=self.rate).clamp_(0, 1)
                values.append(loss)
            losses.append(float(torch.stack(values).mean()))
        keep["weights"] = W
        return torch.lerp(mine, theirs, keep["weights"])

    def _converged(self, losses: list[float]) -> bool:
        last = torch.tensor(losses[-WINDOW:])
        return len(losses) >= MOST or (len(losses) >= WINDOW and float(last.std(correction=0)) < self.threshold)

    def _adapted(self, model: Model) -> tuple[slice, Layout]:
        """Slice of the adapted layers in the shared vector, and their layout."""
        layout = model.layout()
        modules = list(dict.fromkeys(layer.name.rpartition(".")[0] for layer in layout.layers))[-self.top :]
        layers = [layer for layer in layout.layers if layer.name.rpartition(".")[0] in modules]
        return slice(layers[0].start, layout.size), Layout((layer.name, layer.shape) for layer in layers)
