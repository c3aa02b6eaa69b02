from comity.methods._method import Method


class FedPer(Method):
    """Share the body, keep a personal head, train both together.

    Use: when clients need different decision boundaries on common features.

    Paper: Arivazhagan et al., 2019.

    Equation: FedAvg on the body only.

    Departures:
        - The head is the last linear layer; the paper also tries larger heads.
    """

    shared = ("body",)
