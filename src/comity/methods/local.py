from comity.methods._method import Method


class Local(Method):
    """Each client trains alone: the reference that negative transfer is measured against.

    Equation: theta_i ← theta_i − lr ∇f_i(theta_i). Nothing is shared.

    Departures:
        - A client trains in the rounds in which it is sampled, so that it takes as many steps as in any other method.
    """

    shared = ()
