"""FedMGDA+."""

import numpy as np

from comity.rules._rule import Block, Length, Rule, within
from comity.rules._solvers import Solution, box_sum, norm, times


class FedMGDAPlus(Rule):
    """The shortest combination of the normalised updates whose weights stay within eps of the clients' shares.

    Hu et al., IEEE TNSE 2022: min |Σλᵢ Δᵢ/|Δᵢ||² over λ on the simplex with |λᵢ − nᵢ/n| ≤ eps (1/N in the
    paper: give no sizes), and the update lr Σλᵢ Δᵢ/|Δᵢ|. With ``norm_restore`` lr is the length of the uniform mean.

    Options:
        eps: how far a weight may be from the client's share; 0 is the mean of normalised updates, 1 is MGDA
        lr: the server's learning rate, the length of a step being at most this
        norm_restore: make the step as long as the uniform mean instead
        length: the rule's own step, or its direction with the length of the plain mean's
    """

    certificate = "duality gap"
    target = 1e-9

    def __init__(
        self, eps: float = 0.1, *, lr: float = 1.0, norm_restore: bool = False, length: Length = "own"
    ) -> None:
        super().__init__(length=length)
        self.eps = within("eps", eps, 0, 1)
        self.lr = within("lr", lr, 0)
        self.norm_restore = norm_restore

    def solve(self, block: Block) -> Solution:
        r = np.sqrt(block.G.diagonal())
        shares = block.sizes / block.sizes.sum()
        lower, upper = np.maximum(0, shares - self.eps), np.minimum(1, shares + self.eps)
        if self.eps == 0 or len(r) == 1:
            best = Solution(shares, 0.0)
        else:
            best = box_sum(block.G / r / r[:, None], lower, upper, shares)
        mean = norm(times(block.A, np.full(len(r), 1 / block.present)))
        return Solution((mean if self.norm_restore else self.lr / block.unit) * best.x / r, best.residual)
