from comity.methods._method import Method


class Local(Method):
    """Train each client's model on its own data only.

    Use: as the baseline. Every study trains it, unless you give ``--reference none``.

    Equation: theta_i ← theta_i − lr ∇f_i(theta_i). Nothing is shared.

    Departures:
        - A client trains only in the rounds in which it is sampled, so it makes as many training steps as with any
          other method.
    """

    shared = ()
