"""That learning happens, on the embedded digits and, where they are, on real data."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from comity import Config
from comity.engine import run
from helpers import site_of

BRISK = {"lr": 0.1, "workers": 2, "reference": "none", "eval_every": 100}


@pytest.mark.slow
def test_fedavg_on_iid_digits_is_as_good_as_central_training() -> None:
    """Within two points of one model trained on everybody's samples with the same number of epochs."""
    config = Config(**BRISK, model={"name": "mlp", "widths": (64,)}, partition="iid", clients=10, rounds=40)
    fedavg = run(config).result.last.metrics["L-acc"].samples

    site = site_of(config)
    model = site.model()
    x = torch.cat([c.train.x for c in site.federation.clients])
    y = torch.cat([c.train.y for c in site.federation.clients])
    shuffle = torch.Generator().manual_seed(0)
    optimiser = torch.optim.SGD(model.net.parameters(), lr=config.lr)
    for _ in range(config.rounds):
        for index in torch.split(torch.randperm(len(y), generator=shuffle), config.batch_size):
            optimiser.zero_grad()
            F.cross_entropy(model.net(x[index]), y[index]).backward()
            optimiser.step()
    with torch.no_grad():
        hits = model.net.eval()(site.tests.split.x).argmax(1) == site.tests.split.y
    central = float(hits.double().mean())
    assert central > 0.95
    assert abs(fedavg - central) < 0.02, (fedavg, central)


@pytest.mark.slow
def test_personal_heads_are_clearly_above_one_model_where_clients_differ() -> None:
    options = BRISK | {"rounds": 6, "partition": {"name": "dirichlet", "alpha": 0.1}}
    accuracy = {m: run(**options, method=m).result.last.metrics["L-acc"].mean for m in ("FedAvg", "FedPer", "FedRep")}
    assert accuracy["FedPer"] > accuracy["FedAvg"] + 0.05, accuracy
    assert accuracy["FedRep"] > accuracy["FedAvg"] + 0.05, accuracy


@pytest.mark.slow
def test_fashion_mnist_is_learnt(data_dir: Path) -> None:
    done = run(
        **BRISK,
        data="fashion-mnist",
        data_dir=data_dir,
        model={"name": "mlp", "widths": (32,)},
        clients=100,
        participation=0.1,
        rounds=3,
        partition="iid",
        batch_size=32,
    )
    assert done.result.last.metrics["L-acc"].mean > 0.6
