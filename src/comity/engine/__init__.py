"""The engine: server loop, clients, links, evaluation, checkpoints, and the interface of extensions."""

from comity.engine._admission import brief, differing_from_most, tensor_objection
from comity.engine._aggregation import Aggregation, record_step
from comity.engine._callbacks import Callback, Prune, callback_class
from comity.engine._checkpoint import write_tensors
from comity.engine._client import Client, ClientState, hits
from comity.engine._evaluation import (
    Expert,
    Judgement,
    Predict,
    Scores,
    columns_of,
    judged_model,
    loss_as_received,
    predictor,
    summaries,
)
from comity.engine._extension import Extension, MakeUpdates
from comity.engine._link import Link, Threads
from comity.engine._local_models import LocalModels
from comity.engine._optimiser import Training
from comity.engine._plan import Links, RunPlan, threads
from comity.engine._result import transfer
from comity.engine._run import Run, run
from comity.engine._server import Server, cohort_size
from comity.engine._site import Site
from comity.engine._tests import TestPool
from comity.engine._trainer import Autograd, Chain, Compiled, Trainer
from comity.engine._verbs import BESIDE, Call, Verb, verbs_of

# fmt: off
__all__ = [
    # a run
    "run", "Run", "RunPlan", "Callback", "Prune", "callback_class",
    # its parts
    "threads", "Links", "Link", "Threads", "Server", "Site",
    # extension points
    "Extension", "Aggregation", "MakeUpdates", "Judgement", "Expert", "Predict", "predictor", "judged_model",
    "loss_as_received", "record_step",
    # a client during its work
    "Client", "ClientState", "LocalModels", "Training", "Trainer", "Autograd", "Chain", "Compiled",
    # verbs
    "Verb", "Call", "BESIDE", "verbs_of", "Scores", "brief", "tensor_objection", "differing_from_most", "hits",
    # evaluation and output
    "TestPool", "columns_of", "summaries", "transfer", "cohort_size", "write_tensors",
]
# fmt: on
