"""The engine: server loop, clients, links, evaluation and the run folder."""

from comity.engine._callbacks import Callback, TensorBoard
from comity.engine._client import Client
from comity.engine._evaluation import TestPool, summarise, transfer
from comity.engine._folder import Folder
from comity.engine._link import Link, Threads
from comity.engine._optimiser import Training
from comity.engine._run import Links, Run, alone, build, federation_of, rule_of, run, site_of
from comity.engine._server import Server
from comity.engine._site import Site

__all__ = [
    "Callback",
    "Client",
    "Folder",
    "Link",
    "Links",
    "Run",
    "Server",
    "Site",
    "TensorBoard",
    "TestPool",
    "Threads",
    "Training",
    "alone",
    "build",
    "federation_of",
    "rule_of",
    "run",
    "site_of",
    "summarise",
    "transfer",
]
