"""Clients that join after training. Each method serves them in its own way; they do not affect the federation."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import structs

from comity._errors import ComityError
from comity.config import Config
from comity.data import Federation
from comity.engine import ClientState, Extension, LocalModels, Threads, cohort_size, columns_of, summaries, transfer
from comity.methods import Question
from comity.results import Columns, Result
from comity.results import Newcomers as Record

if TYPE_CHECKING:
    from comity.engine import Run, RunPlan, Server, Site


class Newcomers(Extension):
    """Hold the last clients out of training and serve them afterwards."""

    count: int
    participation: float

    @classmethod
    def of(cls, config: Config) -> Self | None:
        return cls(count=config.newcomers, participation=config.participation)

    def participants(self, everyone: Federation) -> Federation:
        count = len(everyone) - self.count
        if count < 1 or cohort_size(count, self.participation) < 1:
            raise ComityError(
                f"newcomers is {self.count} of {len(everyone)} clients, with a participation of "
                f"{self.participation} of the others: no client is left to train"
            )
        return everyone.first(count)

    def after_training(self, run: "Run", result: Result) -> Result:
        """Add the newcomers' results, compared with their local baselines."""
        config, baselines = run.config, dict[str, LocalModels]()
        local: Columns = {}
        needed: list[Literal["all", "train"]] = (
            [] if config.reference == "none" or config.is_local else [config.local_on]
        )
        for on in dict.fromkeys([*needed, *(on for each in run.site.extensions for on in each.baselines)]):
            plan = run.plan.local_baseline(on, everyone=True)
            scores, _, baselines[on] = serve(plan, *plan.build(), {})
            local = columns_of(scores, run.site.metrics) if on in needed and scores else local
        scores, failed, _ = serve(run.plan, run.site, run.server, baselines)
        columns = columns_of(scores, run.site.metrics) if scores else {}
        newcomers = Record(
            clients=columns,
            metrics=summaries(columns, run.site.metrics) if columns else {},
            transfer=transfer(columns, local, {}, config) if columns and local else None,
            failed=failed,
        )
        return structs.replace(result, newcomers=newcomers)


Served = tuple[dict[int, Any], dict[int, str], LocalModels]
"""Scores of the newcomers, reasons why some could not be served, and the models of the others."""


def serve(plan: "RunPlan", site: "Site", server: "Server", baselines: dict[str, LocalModels]) -> Served:
    """Let the newcomers join and compare them with these local baselines. ``site`` and ``server`` stay unchanged."""
    config, method, everyone = plan.config, site.method, plan.everyone
    cids = range(len(plan.federation), len(everyone))
    site = site.serving(everyone, baselines)
    link = Threads(site, server.link.workers, clients=server.clients)
    now, rounds = server.round, config.newcomer_rounds
    if config.is_local:  # Local sends nothing: newcomers train as the other clients did
        now, rounds = 0, max(1, round(config.participation * config.rounds))
    newcomers_server = server.serving(link, now)
    try:
        received: dict[int, Question] = {cid: method.welcome(newcomers_server, cid, None) for cid in cids}
        model = site.model()
        states = {}
        for cid in cids:
            client = site.client(cid, model, verb="join", round=now)
            method.join(client, received[cid])
            states[cid] = ClientState(client.keep, client.engine_keep)
        link.restore(states)
        for _ in range(rounds):
            replies = newcomers_server.serve(received)
            received = {cid: method.welcome(newcomers_server, cid, replies.get(cid)) for cid in cids}
        questions = {cid: replace(each, by_class=True) for cid, each in received.items()}
        scores: dict[int, Any] = link.ask(newcomers_server.verbs["evaluate"], questions, newcomers_server.round)
    except Exception as error:  # a method that cannot serve newcomers must not end the run
        scores, link.failures = {}, dict.fromkeys(cids, f"{type(error).__name__}: {error}")
    return scores, link.failures, LocalModels(site, link.states())
