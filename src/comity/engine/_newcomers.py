"""Clients that join after training. Each method serves them in its own way; nothing of them enters the federation."""

import copy
from typing import TYPE_CHECKING, Any

from comity.config import Config
from comity.engine._assemble import build
from comity.engine._client import ClientState
from comity.engine._evaluation import columns_of, summarise
from comity.engine._link import Threads
from comity.engine._server import Server
from comity.engine._site import Site
from comity.engine._verbs import Scores
from comity.results import transfer
from comity.results.schema import METRICS, Newcomers, RoundRecord

if TYPE_CHECKING:
    from comity.engine._run import Run


def newcomers_of(run: "Run") -> Newcomers | None:
    """How the newcomers of a run that is done fare, beside what they would have alone; ``None`` without any."""
    if not run.config.newcomers:
        return None
    scores, failed = serve(run.config, run.site, run.server)
    columns = columns_of(scores) if scores else {}
    compared = None
    if run.config.reference != "none" and not run.config.is_local:
        alone = run.config.alone()
        local, _ = serve(alone, *build(alone, run.site.everybody))
        compared = transfer(*({cid: score.own for cid, score in each.items()} for each in (scores, local)))
    return Newcomers(
        clients=columns,
        metrics={name: summarise(columns, name) for name in METRICS if name in columns},
        transfer=compared,
        failed=failed,
    )


def serve(config: Config, site: Site, server: Server) -> tuple[dict[int, Scores], dict[int, str]]:
    """The newcomers' scores, and who could not be served and why. ``site`` and ``server`` stay as they are."""
    site, desk, method = copy.copy(site), copy.copy(server), site.method
    cids = range(len(site.federation), len(site.everybody))
    vars(site).pop("tests", None)
    site.federation = site.everybody
    desk.link = link = Threads(site, server.link.workers)
    link.clients = server.clients
    desk.store, desk.record = dict(server.store), RoundRecord(round=server.round)
    rounds = config.newcomer_rounds
    if config.is_local:  # there is nothing to be given: they train as the others did
        desk.round, rounds = 0, max(1, round(config.participation * config.rounds))
    try:
        received = {cid: method.welcome(desk, cid, None) for cid in cids}
        model = site.model()
        states = {}
        for cid in cids:
            client = site.client(cid, model, verb="join", round=desk.round)
            method.join(client, received[cid])
            states[cid] = ClientState(client.keep, client.engine_keep)
        link.restore(states)
        for _ in range(rounds):
            desk.round += 1
            replies = link.ask(desk.verbs["fit"], received, desk.round, shared=desk.theta)
            received = {cid: method.welcome(desk, cid, replies.get(cid)) for cid in cids}
        scores: dict[int, Any] = link.ask(desk.verbs["evaluate"], received, desk.round)
    except Exception as error:  # a method that cannot serve newcomers costs nobody the run
        return {}, dict.fromkeys(cids, f"{type(error).__name__}: {error}")
    return scores, link.failures
