"""The model and the data: handwritten digits that come with scikit-learn, shared out unevenly."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digits = load_digits()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.fc1 = nn.Linear(8 * 3 * 3, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        logits: torch.Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return logits


def load_data(partition_id: int, num_partitions: int) -> tuple[DataLoader, DataLoader]:  # type: ignore[type-arg]
    """One client's part by a Dirichlet distribution over classes, four fifths of it to train on."""
    random = np.random.default_rng(0)
    mine = []
    for label in range(10):
        index = random.permutation(np.flatnonzero(digits.target == label))
        cuts = (np.cumsum(random.dirichlet(np.full(num_partitions, 0.5))) * len(index)).astype(int)[:-1]
        mine.append(np.split(index, cuts)[partition_id])
    index = random.permutation(np.concatenate(mine))
    x = torch.from_numpy(digits.images[index]).float().unsqueeze(1) / 16
    y = torch.from_numpy(digits.target[index])
    n = max(1, len(index) * 4 // 5)
    train, test = TensorDataset(x[:n], y[:n]), TensorDataset(x[n:], y[n:])
    return DataLoader(train, batch_size=16, shuffle=True), DataLoader(test, batch_size=256)


def train(net: Net, loader: DataLoader, epochs: int, lr: float) -> float:  # type: ignore[type-arg]
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / max(1, epochs * len(loader))


@torch.no_grad()
def test(net: Net, loader: DataLoader) -> tuple[float, float]:  # type: ignore[type-arg]
    net.eval()
    loss, hits, count = 0.0, 0, 0
    for x, y in loader:
        logits = net(x)
        loss += nn.functional.cross_entropy(logits, y, reduction="sum").item()
        hits += int((logits.argmax(1) == y).sum())
        count += len(y)
    return loss / max(1, count), hits / max(1, count)
