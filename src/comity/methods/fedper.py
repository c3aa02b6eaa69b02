from comity.methods._method import Method


class FedPer(Method):
    """Share the body, keep the head, train both together.

    Arivazhagan et al., 2019. The head is the last linear layer; the paper also tries larger ones.
    """

    shared = ("body",)
