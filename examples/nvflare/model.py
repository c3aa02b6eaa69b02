"""What is trained: 24 numbers of a patient in, two classes out."""

import torch
from torch import nn


class Net(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 2))
