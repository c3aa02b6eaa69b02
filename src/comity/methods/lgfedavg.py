from comity.methods._method import Method


class LGFedAvg(Method):
    """Keep the body, share the head: local representations under a common classifier.

    Liang et al., 2020. The authors start from a model trained with FedAvg and average without weights; here, as in
    common code, training starts from scratch and the rule decides the weights.
    """

    shared = ("head",)
