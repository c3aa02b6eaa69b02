"""The engine: server loop, clients, links, evaluation, checkpoints."""

from comity.engine._assemble import Links, build, federation_of, fingerprint_of, rule_of, site_of, threads
from comity.engine._callbacks import Callback, callback_class
from comity.engine._checkpoint import write_tensors
from comity.engine._client import Client, ClientState
from comity.engine._evaluation import TestPool, summarise
from comity.engine._link import Link, Threads
from comity.engine._optimiser import Training
from comity.engine._run import Run, run
from comity.engine._server import Server
from comity.engine._site import Site
from comity.engine._trainer import Autograd, Chain, Stacked, Trainer
from comity.engine._verbs import READ_ONLY_VERBS, Scores, Verb, verbs_of

__all__ = [
    "READ_ONLY_VERBS",
    "Autograd",
    "Callback",
    "Chain",
    "Client",
    "ClientState",
    "Link",
    "Links",
    "Run",
    "Scores",
    "Server",
    "Site",
    "Stacked",
    "TestPool",
    "Threads",
    "Trainer",
    "Training",
    "Verb",
    "build",
    "callback_class",
    "federation_of",
    "fingerprint_of",
    "rule_of",
    "run",
    "site_of",
    "summarise",
    "threads",
    "verbs_of",
    "write_tensors",
]
