from comity.methods.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg, but each client keeps its own BatchNorm layers.

    Use: when clients' inputs look different (scanners, cameras, sensors) and the network has BatchNorm.

    Paper: Li et al., ICLR 2021.

    Equation: FedAvg on all parameters except the scale, shift, mean and variance of BatchNorm, which stay with the
    client. If the network has no BatchNorm, the result is bit-identical to FedAvg. To keep only mean and variance with
    the client, but average scale and shift, use FedAvg with ``--buffers local``.

    Options:
        personal_model: model that a client uses: the global model with its own BatchNorm layers, its model after local
            training, or the fine-tuned global model
        finetune_epochs: epochs of fine-tuning (none = the run's --epochs)
    """

    local_norm = True
