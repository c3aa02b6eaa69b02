from comity.methods._method import Method


class FedPer(Method):
    """Share the body, keep a personal head, and train both together.

    Use: when clients can share features but need classifiers of their own.

    Paper: Arivazhagan et al., 2019.

    Equation: Body and head are trained together. The server averages the bodies as in FedAvg; the head stays with the
    client.

    Departures:
        - The head is the last linear layer; the paper also tries larger heads.
    """

    shared = ("body",)
