from comity.methods.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg in which each client keeps its own BatchNorm layers.

    Use: when clients' inputs look different (scanners, cameras, sensors) and the network has BatchNorm.

    Paper: Li et al., ICLR 2021.

    Equation: FedAvg on all parameters except the scale, shift, mean and variance of BatchNorm, which stay with the
    client.

    Departures:
        - Without BatchNorm in the network the result is bit-identical to FedAvg. The run's option ``buffers`` set to
          ``local`` keeps only mean and variance with the client and averages scale and shift.

    Options:
        personal_model: model that a client uses: the global model with its own BatchNorm, its model after local
            training, or the fine-tuned one
        finetune_epochs: epochs of fine-tuning (none = the run's --epochs)
    """

    local_norm = True
