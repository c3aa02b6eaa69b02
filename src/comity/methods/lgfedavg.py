from comity.methods._method import Method


class LGFedAvg(Method):
    """Keep a personal body, share the head.

    Use: when clients have different inputs but the same classes, or when traffic must be small.

    Paper: Liang et al., 2020.

    Equation: Body and head are trained together. The server averages the heads as in FedAvg; the body stays with the
    client.

    Departures:
        - The authors start from a model trained with FedAvg. Here training starts from scratch, as in public code.
        - The authors average without weights. Here the rule decides the weights.
    """

    shared = ("head",)
