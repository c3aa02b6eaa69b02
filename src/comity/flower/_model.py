"""A site's model folder: written at the client's evaluation, completed by the verdict at the end of the run."""

import dataclasses
import math
import shutil
import time
from dataclasses import field
from logging import INFO, WARNING
from pathlib import Path

import msgspec
from flwr.supercore import log

from comity._errors import ComityError
from comity.deploy import Artefact, Performance, Weighted, artefact_of, experts_of, read_model, write_model
from comity.engine import Extension, Judgement, Run, RunPlan, Verb, brief
from comity.methods import Payload
from comity.metrics import DECIDING, EVIDENCE
from comity.results import Gain, Result, from_json, to_json

CONCLUDE = "conclude"


class Verdict(Payload):
    """The server's result for one client, as in `Gain`, for that client's model card."""

    gain: float
    low: float
    high: float
    detectable: float
    state: str


class Noted(Payload):
    """Confirms that a client has received its verdict."""


class SiteModels(Extension):
    """Write each client's model folder at its site, and let the server send each client its verdict."""

    experts: dict[int, list[Weighted]] = field(default_factory=dict, init=False)

    def judge(self, judgement: Judgement) -> None:
        self.experts[judgement.client.id] = experts_of(judgement)

    def verbs(self, verbs: dict[str, Verb]) -> dict[str, Verb]:
        return verbs | {CONCLUDE: Verb(CONCLUDE, Verdict, Noted, lambda call: (Noted(), call.state), judges=True)}

    def after_training(self, run: Run, result: Result) -> Result:
        """Send each client its result of the test for harm."""
        gains = {} if result.transfer is None else result.transfer.clients
        questions = {cid: Verdict(**msgspec.structs.asdict(gains[cid])) for cid in run.server.clients if cid in gains}
        try:
            if questions:
                run.server.ask_clients(CONCLUDE, questions)
        except ComityError as error:  # the run is done anyway
            log(WARNING, "The sites do not have their verdicts: %s", error)
        return result

    def conclude(self, folder: Path, verdict: Verdict) -> None:
        """Add the server's verdict to the model that was written last."""
        try:
            artefact = read_model(folder)
            gain = from_json(Gain, to_json(verdict.values()).encode(), "the verdict")
            assert artefact.info.performance is not None  # this run evaluated the model before it was written
            performance = msgspec.structs.replace(artefact.info.performance, gain=gain)
            info = msgspec.structs.replace(artefact.info, performance=performance)
            replace_model(folder, dataclasses.replace(artefact, info=info))
        except Exception as error:
            log(WARNING, "The verdict is not in %s: %s", folder, brief(error))

    def write(self, folder: Path, plan: RunPlan, cid: int, reply: Payload, round: int) -> None:
        """Write a client's model folder after its evaluation, replacing an earlier one.

        A model that cannot be saved, such as one of a class given in Python, has no other consequences for the client.
        """
        try:
            performance = performance_of(plan, reply)
            artefact = artefact_of(plan, cid, self.experts.pop(cid), performance, time.strftime("%Y-%m-%d %H:%M:%S"))
            replace_model(folder, artefact)
        except Exception as error:
            log(WARNING, "No model of client %d is saved: %s", cid, brief(error))
            return
        if round >= plan.config.last_round:
            log(INFO, "Model of client %d: %s", cid, folder)


def replace_model(folder: Path, artefact: Artefact) -> None:
    """Write a model's folder under another name and rename it when complete; then remove an earlier one."""
    new, old = (folder.with_name(f".{folder.name}.{end}") for end in ("part", "old"))
    for rest in (new, old):
        shutil.rmtree(rest, ignore_errors=True)
    new.mkdir(mode=0o700, parents=True)
    write_model(new, artefact)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def performance_of(plan: RunPlan, reply: Payload) -> Performance:
    """The client's performance on its own tests."""
    metric, values = DECIDING[plan.site.metric], reply.values()
    score, gain = (values.get(name, math.nan) for name in (metric.field, EVIDENCE[0].field))
    return Performance(
        score=score,
        local=min(max(score - metric.sign * gain, metric.low), metric.high),
        train_samples=values["n_train"],
        test_samples=values["n_test"],
        margin=plan.config.margin,
    )
