"""A method without its idea is a simpler method, to the bit. That no method is another one is in test_all.py."""

import pytest
import torch

from comity.engine import run
from helpers import Options, used

CALM = {"name": "CALM", "eps": 0.05, "C": 1.0}
LAYERS = {"name": "Projection", "scope": "layer"}
MGDA, FAIR = {"name": "FedMGDA+", "eps": 0.3}, {"name": "FedFV", "alpha": 0.5, "tau": 2}
AUTOGRAD = {"trainer": "autograd"}  # the other trainers agree with it to rounding
PFLLIB = {"name": "APFL", "form": "pfllib", "adaptive": False}
SOME = {"participation": 0.6}


@pytest.mark.parametrize(
    ("method", "simpler", "options"),
    [
        ({"name": "FedProx", "mu": 0.0}, {}, {}),
        ({"name": "FedBN"}, {}, {}),
        ({"name": "FedBN"}, {}, {"model": {"name": "vit-tiny", "depth": 1}}),  # its LayerNorm is shared
        ({"name": "FedALA", "rate": 0.0}, {}, SOME),
        ({"name": "FedALA", "rate": 0.0, "top": 3}, {}, SOME | {"model": "resnet4"}),
        ({"name": "APFL", "alpha": 0.0, "adaptive": False}, {}, AUTOGRAD),
        ({"name": "FeSEM", "clusters": 1}, {}, SOME),
        ({"name": "IFCA", "clusters": 1}, {}, SOME),
        (MGDA, {"rule": MGDA}, SOME),
        (FAIR, {"rule": FAIR}, SOME),
        ({"name": "FedPAC", "lam": 0.0}, {"method": "FedRep"}, {"clients": 1}),
        ({"name": "FedBABU", "finetune_epochs": 0}, {"method": {"name": "FedRep", "head_epochs": 0}}, {}),
        (CALM | {"name": "FedCALM"}, {"method": "FedRep", "rule": CALM}, {}),
        (CALM | {"name": "FedCALM", "local": "joint"}, {"method": "FedPer", "rule": CALM}, {}),
        ({"name": "FedCALM", "stages": 1}, {"method": "FedRep", "rule": LAYERS}, {}),
        ({"name": "FedCALM", "C": 0.0}, {"method": "FedRep", "rule": LAYERS}, {}),
        ({"name": "FedU", "step": 0.0}, {"method": "Local"}, SOME),
        ({"name": "FedU", "step": 0.0}, {"method": "Local"}, {"model": "resnet4"}),
        ({"name": "FedAMP", "lam": 0.0}, {"method": "Local"}, {}),
        ({"name": "FedAMP", "lam": 0.0}, {"method": "Local"}, {"model": "resnet4"}),
        ({"name": "Ditto", "lam": 0.0}, {"method": "Local"}, {}),
        ({"name": "APFL", "alpha": 1.0, "adaptive": False}, {"method": "Local"}, AUTOGRAD),
        ({"name": "APFL", "alpha": 1.0, "adaptive": False}, {"method": "Local"}, AUTOGRAD | {"model": "resnet4"}),
        (PFLLIB | {"alpha": 1.0}, {"method": "Local"}, AUTOGRAD),
        (PFLLIB | {"alpha": 1.0}, {"method": "Local"}, AUTOGRAD | {"model": "resnet4"}),
        (PFLLIB | {"alpha": 0.0}, {"method": {"name": "FedAvg", "personal_model": "post_local"}}, AUTOGRAD),
        ({"name": "FedProto", "lam": 0, "answer": "head"}, {"method": "Local"}, {}),
    ],
    ids=lambda each: " ".join(map(str, each.values())) or "plain",
)
def test_clients_use_the_models_of(tiny: Options, method: Options, simpler: Options, options: Options) -> None:
    options = tiny | {"rounds": 2, "clients": 3, "lr": 0.05, "data": tiny["data"] | {"label_shift": 0.9}} | options
    ours, theirs = (used(run(**(options | each))) for each in ({"method": method}, simpler))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    "method",
    [
        {"name": "Ditto", "lam": 1.0},
        {"name": "APFL", "alpha": 1.0, "adaptive": False},
        {"name": "APFL", "form": "pfllib"},
        {"name": "FedROD", "gamma": 0.0},
    ],
    ids=lambda each: each["name"],
)
def test_the_common_model_is_that_of_fedavg(tiny: Options, method: Options) -> None:
    ours, theirs = run(**tiny, **AUTOGRAD, method=method), run(**tiny, **AUTOGRAD)
    assert torch.equal(ours.server.theta, theirs.server.theta)
