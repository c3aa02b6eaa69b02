from comity.methods._method import Method


class Local(Method):
    """Train each client's model on its own data only: the baseline for negative transfer.

    Use: as the baseline; every study trains it unless --reference none is given.

    Equation: theta_i ← theta_i − lr ∇f_i(theta_i). Nothing is shared.

    Departures:
        - A client trains only in rounds in which it is sampled, so it takes as many steps as under any other method.
    """

    shared = ()
