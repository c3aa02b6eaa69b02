"""Clients that join after training. Each method serves them in its own way; nothing of them enters the federation."""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from comity.config import Config
from comity.engine._alone import Alone
from comity.engine._assemble import build
from comity.engine._client import ClientState
from comity.engine._evaluation import columns_of, summarise, transfer_of
from comity.engine._link import Threads
from comity.engine._server import Server
from comity.engine._site import Site
from comity.engine._verbs import Scores
from comity.results import METRICS, Newcomers, RoundRecord

if TYPE_CHECKING:
    from comity.engine._run import Run


def newcomers_of(run: "Run") -> Newcomers | None:
    """How the newcomers of a run that is done fare, beside what they would have alone; ``None`` without any."""
    if not run.config.newcomers:
        return None
    config, guests = run.config, copy.copy(run.site)
    guests.reference = guests.held_out = None
    local: dict[int, Scores] = {}  # nobody's, where there is nothing to compare with
    if config.reference != "none" and not config.is_local:
        local, _, guests.reference = _alone(run, config.alone())
    if config.guard is not None:
        # they weigh what they are given as the others did, and then nothing is trained any more
        _, _, guests.held_out = _alone(run, config.alone(on="train"))
        guests.whole_from = None
    scores, failed, _ = serve(config, guests, run.server)
    columns = columns_of(scores) if scores else {}
    alone = {cid: score.own for cid, score in local.items()}
    return Newcomers(
        clients=columns,
        metrics={name: summarise(columns, name) for name in METRICS if name in columns},
        transfer=transfer_of(columns, alone, config.local_on) if columns else None,
        failed=failed,
    )


Served = tuple[dict[int, Scores], dict[int, str], Alone]
"""The newcomers' scores, who could not be served and why, and the models of those who could."""


def _alone(run: "Run", alone: Config) -> Served:
    """The newcomers' own training, without the federation."""
    return serve(alone, *build(alone, run.site.everybody))


def serve(config: Config, site: Site, server: Server) -> Served:
    """Have the newcomers join. ``site`` and ``server`` stay as they are."""
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
        scores: dict[int, Any] = link.ask(
            desk.verbs["evaluate"], {cid: replace(each, by_class=True) for cid, each in received.items()}, desk.round
        )
    except Exception as error:  # a method that cannot serve newcomers costs nobody the run
        scores, link.failures = {}, dict.fromkeys(cids, f"{type(error).__name__}: {error}")
    return scores, link.failures, Alone(site, link.states())
