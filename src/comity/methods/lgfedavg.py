from comity.methods._method import Method


class LGFedAvg(Method):
    """Keep a personal body, share the head: local representations under a common classifier.

    Use: when clients' inputs differ but their classes mean the same, or when traffic must be small.

    Paper: Liang et al., 2020.

    Equation: FedAvg on the head only.

    Departures:
        - The authors start from a model trained with FedAvg; here, as in public code, training starts from scratch.
        - The authors average without weights; here the rule decides the weights.
    """

    shared = ("head",)
