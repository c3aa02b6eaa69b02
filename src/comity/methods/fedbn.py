from comity.methods.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg, in which each client keeps its BatchNorm layers: for clients whose inputs look different.

    Paper: Li et al., ICLR 2021.

    Equation: FedAvg on everything but the scale, shift, mean and variance of BatchNorm, which are the client's own.

    Departures:
        - In a network without BatchNorm it is FedAvg to the bit. The run's option ``buffers`` set to ``local`` keeps
          mean and variance with the client and averages scale and shift.

    Options:
        personal_model: what a client uses: the common model with its own BatchNorm, what local training made of that
            last, or its fine-tuning
        finetune_epochs: epochs of that fine-tuning, or none for the run's own number
    """

    local_norm = True
