from comity.methods._method import Method


class LGFedAvg(Method):
    """Keep the body, share the head: local representations under a common classifier.

    Paper: Liang et al., 2020.

    Equation: FedAvg on the head alone.

    Departures:
        - The authors start from a model that was trained with FedAvg; here, as in common code, training starts from
          scratch.
        - The authors average without weights; here the rule decides the weights.
    """

    shared = ("head",)
