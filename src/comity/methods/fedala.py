from typing import Annotated

import torch
from torch import Tensor

from comity._layout import Layout
from comity._options import Count, NonNegative, Positive, Range
from comity.data import Split
from comity.methods._method import Client, Message, Method, Reply
from comity.nn import Model, gradients_of

WINDOW = 10  # losses that must agree before the first learning of the weights may end
MOST = 100  # passes after which it ends in any case: too large a rate can swing for ever


class FedALA(Method):
    """FedAvg, in which a client takes of each number of the global head only as much as helps it.

    Paper: Zhang et al., AAAI 2023.

    Equation: Before the received model θ_g is trained or used, its last ``top`` modules become θ_i + (θ_g − θ_i) ⊙ W,
    where θ_i is what the client's last training left; the rest of the model is θ_g. W starts at 1, is kept between
    rounds and learns on a random ``share`` of the training data: W ← clip(W − rate · ∇L ⊙ (θ_g − θ_i), 0, 1), with the
    gradient ∇L by the mixed parameters. The first time passes repeat until the mean losses of the last ten have a
    standard deviation below ``threshold``; later there is one pass a round. In its first round a client has no θ_i and
    adapts nothing.

    Departures:
        - Public code watches the loss of a pass's last batch, where the mean over the pass is watched here.
        - Public code lets W learn on a contiguous part of the data, where the samples are drawn here.
        - The first learning ends after a hundred passes in any case: too large a rate can swing for ever.
        - BatchNorm uses the received statistics while W learns.
        - A client uses the mixture before it trains, as in PFLlib: a head of its own on everybody's body. Where the
          common body has not learnt yet, as a transformer's after a few rounds, that is far below what training then
          makes of it (``--moment fitted``). W moves with the square of θ_g − θ_i, so after short steps, as Adam's, it
          stays near 1; a ``rate`` of 100 then helps.

    Options:
        top: how many of the last modules (a weight with its bias) are adapted; the paper's p
        share: share of the training data that the weights learn on
        rate: learning rate of the weights; 0 leaves W at 1, which is FedAvg
        threshold: standard deviation of the last ten losses at which the first learning of the weights ends
    """

    top: Count = 1
    share: Annotated[float, Range(above=0, most=1)] = 0.8
    rate: NonNegative = 1.0
    threshold: Positive = 0.1

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
        """The two mixed with the weights that this round's data ask for."""
        model, data, keep = client.model, client.data.train, client.keep
        model.net.eval()
        first = "weights" not in keep
        W = torch.ones_like(mine) if first else keep["weights"].clone()
        count = max(1, round(self.share * len(data)))
        chosen = torch.randperm(len(data), generator=client.random("ALA"))[:count]
        sample = Split(data.x[chosen], data.y[chosen])
        params = model.parameters()[-len(layers.names) :]
        if all(name.startswith("head.") for name in layers.names):
            # the body stands still: its features serve all passes
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
        """Where the adapted layers lie in the shared vector, and their own layout."""
        layout = model.layout()
        modules = list(dict.fromkeys(layer.name.rpartition(".")[0] for layer in layout.layers))[-self.top :]
        layers = [layer for layer in layout.layers if layer.name.rpartition(".")[0] in modules]
        return slice(layers[0].start, layout.size), Layout((layer.name, layer.shape) for layer in layers)
