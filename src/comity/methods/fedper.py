from comity.methods._method import Method


class FedPer(Method):
    """Share the body, keep the head, train both together.

    Paper: Arivazhagan et al., 2019.

    Equation: FedAvg on the body alone.

    Departures:
        - The head is the last linear layer; the paper also tries larger ones.
    """

    shared = ("body",)
