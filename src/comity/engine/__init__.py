"""The engine: server loop, clients, links, evaluation, checkpoints."""

from comity.engine._admission import brief, unlike_most
from comity.engine._alone import Alone
from comity.engine._assemble import (
    Links,
    build,
    federation_of,
    fingerprint_of,
    rule_of,
    settled,
    site_of,
    threads,
    verbs_for,
)
from comity.engine._callbacks import Callback, Prune, callback_class
from comity.engine._checkpoint import write_tensors
from comity.engine._client import Client, ClientState
from comity.engine._evaluation import TestPool, summarise
from comity.engine._link import Link, Threads
from comity.engine._optimiser import Training
from comity.engine._run import Run, run
from comity.engine._server import Server
from comity.engine._site import Site
from comity.engine._trainer import Autograd, Chain, Compiled, Trainer
from comity.engine._verbs import JUDGING_VERBS, READ_ONLY_VERBS, Scores, Verb, verbs_of

# fmt: off
__all__ = [
    # a run
    "run", "Run", "Callback", "Prune", "callback_class",
    # its parts
    "build", "settled", "site_of", "federation_of", "fingerprint_of", "rule_of", "threads", "Links", "Link",
    "Threads", "Server", "Site",
    # a client at work
    "Client", "ClientState", "Alone", "Training", "Trainer", "Autograd", "Chain", "Compiled",
    # what it can be asked
    "Verb", "verbs_of", "verbs_for", "READ_ONLY_VERBS", "JUDGING_VERBS", "Scores", "brief", "unlike_most",
    # what comes out
    "TestPool", "summarise", "write_tensors",
]
# fmt: on
