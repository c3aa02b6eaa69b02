from comity.methods._method import Method


class Local(Method):
    """Each client trains alone: the reference that negative transfer is measured against.

    Nothing is shared. A client trains in the rounds in which it is sampled, so that it takes as many steps here as in
    any other method.
    """

    shared = ()
