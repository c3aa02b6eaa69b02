"""Methods: how clients learn and what they share. One file each.

To write one, subclass :class:`Method` in a file of yours and pass its dotted path (``--method mypkg.mymod.MyMethod``);
docs/tutorials/own-method.md shows how.
"""

from comity._options import Count, CountOrZero, NonNegative, Positive, Share
from comity.methods._messages import Message, Payload, Question, Reply, field_types, verb
from comity.methods._method import WHOLE, Method
from comity.methods._sides import Client, Combined, Server
from comity.methods.apfl import APFL
from comity.methods.ditto import Ditto
from comity.methods.fedala import FedALA
from comity.methods.fedamp import FedAMP
from comity.methods.fedas import FedAS
from comity.methods.fedavg import FedAvg
from comity.methods.fedbabu import FedBABU
from comity.methods.fedbn import FedBN
from comity.methods.fedcalm import FedCALM
from comity.methods.fedcp import FedCP
from comity.methods.feddbe import FedDBE
from comity.methods.fedfomo import FedFomo
from comity.methods.fedfv import FedFV
from comity.methods.fedmgdaplus import FedMGDAPlus
from comity.methods.fedora import FEDORA
from comity.methods.fedpac import FedPAC
from comity.methods.fedper import FedPer
from comity.methods.fedpg import FedPG
from comity.methods.fedproto import FedProto
from comity.methods.fedprox import FedProx
from comity.methods.fedrep import FedRep
from comity.methods.fedrod import FedROD
from comity.methods.fedu import FedU
from comity.methods.fesem import FeSEM
from comity.methods.gpfl import GPFL
from comity.methods.ifca import IFCA
from comity.methods.knnper import KNNPer
from comity.methods.lgfedavg import LGFedAvg
from comity.methods.local import Local
from comity.methods.perfedavg import PerFedAvg
from comity.methods.pfedfda import PFedFDA
from comity.methods.pfedhn import PFedHN
from comity.methods.pfedme import PFedMe
from comity.methods.scaffold import SCAFFOLD
from comity.methods.sfedpg import SFedPG
from comity.methods.splitgp import SplitGP

# fmt: off
METHODS = {
    # one shared model, or a shared part
    "Local": Local, "FedAvg": FedAvg, "FedProx": FedProx, "SCAFFOLD": SCAFFOLD, "FedBN": FedBN, "FedPer": FedPer,
    "FedRep": FedRep, "FedBABU": FedBABU, "LG-FedAvg": LGFedAvg,
    # a personal model beside the shared one
    "Ditto": Ditto, "Per-FedAvg": PerFedAvg, "APFL": APFL, "pFedMe": PFedMe, "kNN-Per": KNNPer,
    # mixtures of models
    "FedAMP": FedAMP, "FedFomo": FedFomo, "FedU": FedU,
    # personal heads, features, weights or parts
    "FedROD": FedROD, "FedCP": FedCP, "FedALA": FedALA, "FedAS": FedAS, "FedPAC": FedPAC, "FedProto": FedProto,
    "pFedFDA": PFedFDA, "GPFL": GPFL, "FedDBE": FedDBE, "SplitGP": SplitGP, "pFedHN": PFedHN,
    # clusters
    "IFCA": IFCA, "FeSEM": FeSEM,
    # conflict, fairness, and propagation of models between clients
    "FedMGDA+": FedMGDAPlus, "FedFV": FedFV, "FEDORA": FEDORA, "FedCALM": FedCALM, "FedPG": FedPG, "S-FedPG": SFedPG,
}
"""Methods by their command-line name."""

__all__ = [
    # to write a method
    "Method", "WHOLE", "Client", "Server", "Combined", "Payload", "Question", "Message", "Reply", "verb",
    "field_types",
    # ranges of options
    "Count", "CountOrZero", "NonNegative", "Positive", "Share",
    # all methods
    "METHODS", "APFL", "Ditto", "FEDORA", "FeSEM", "FedALA", "FedAMP", "FedAS", "FedAvg", "FedBABU", "FedBN", "FedCALM",
    "FedCP", "FedDBE", "FedFV", "FedFomo", "FedMGDAPlus", "FedPAC", "FedPG", "FedPer", "FedProto", "FedProx", "FedROD",
    "FedRep", "FedU", "GPFL", "IFCA", "KNNPer", "LGFedAvg", "Local", "PFedFDA", "PFedHN", "PFedMe", "PerFedAvg",
    "SCAFFOLD", "SFedPG", "SplitGP",
]
# fmt: on
