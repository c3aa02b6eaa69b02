"""The server side: a ServerApp that runs a configuration over a grid."""

import base64
import shlex
from collections.abc import Mapping
from functools import partial
from io import StringIO
from logging import INFO, WARNING
from pathlib import Path
from secrets import token_hex
from typing import Any

from cryptography.hazmat.primitives import serialization
from flwr.app import Context
from flwr.app.user_config import UserConfigValue
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log
from rich.console import Console

from comity._errors import ComityError, printable
from comity.config import Config
from comity.engine import Callback, Link, Run, RunPlan, Site, run
from comity.flower._app import OURS, config_of
from comity.flower._link import GridLink, Patience
from comity.flower._model import SiteModels
from comity.flower._own import SiteData, Tables
from comity.metrics import DECIDING, OWN
from comity.probe import SEEDS, Answer, AtSites, ask_sites
from comity.results import RoundRecord, RunFolder

ANY = "any"
"""Instead of seats: any online node may take a free seat, with any key."""


def server_app(config: Config | None = None, own: SiteData | None = None, *, allow_code: bool = False) -> ServerApp:
    """A ServerApp for ``config``, or by default for the app's configuration (pyproject.toml and ``flwr run -c``).

    It does the same run as ``comity run``, with local baselines and a run folder; only the link to the clients differs.
    ``allow_code`` is as in ``client_app``.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = {key[len(OURS) + 1 :]: v for key, v in context.run_config.items() if key.startswith(f"{OURS}.")}
        chosen = config or config_of(context.run_config, allow_code=allow_code)
        if seeds := int(settings.pop("ask", 0)):
            ask_over(grid, chosen, own, seeds, **_link_settings(settings))
            return
        begun = str(settings.get("resume", ""))
        if begun:
            chosen = chosen.with_(out=Path(begun))
            if not RunFolder(begun).started:
                raise ComityError(f"{OURS}.resume is {begun}, which holds no run; name the folder of a run to resume")
        elif chosen.out is not None:  # each `flwr run` has its own folder
            chosen = chosen.with_(out=chosen.out / f"flower-{context.run_id}")
        over(grid, chosen, own, resume=bool(begun), **_link_settings(settings))

    return app


def over(grid: Grid, config: Config, own: SiteData | None = None, *, resume: bool = False, **settings: Any) -> Run:
    """Run ``config`` with the clients of ``grid``; ``settings`` are arguments of ``GridLink``, and ``seats``.

    With ``resume`` it waits while another ServerApp uses the folder: one outlives its SuperLink by some seconds.
    """
    if config.save_models:
        raise ComityError(
            "save_models would have every site send its own model to the server; on Flower a site keeps it: "
            "start its SuperNode with --node-config \"keep='/a/folder'\""
        )
    if config.newcomers:
        raise ComityError("newcomers are served on one machine; on Flower leave newcomers out")

    taken = None if settings.pop("seats", "") == ANY else dict[int, int]()  # the same seats for the local baseline

    def link(config: Config, site: Site) -> Link:
        return GridLink(grid, len(site.federation), config.key, along=along, taken=taken, **settings)

    along: list[float] = []  # the same for the run and its local baselines
    federation = None if own is None else own.federation(config)
    if resume:
        log(INFO, "Resuming the run in %s as soon as no other ServerApp uses it", config.out)
    plan = RunPlan(config, federation, link)
    if own is not None and not config.is_local:
        plan.extensions.append(SiteModels())  # sends each site its verdict
    return run(plan=plan, callbacks=[Logged()], resume=resume, wait=resume)


def ask_over(grid: Grid, config: Config, own: SiteData | None, seeds: int = SEEDS, **settings: Any) -> Answer:
    """`comity ask` with the tables of a grid's sites; the answer is also in Flower's log."""
    if not isinstance(own, Tables):
        raise ComityError(f"{OURS}.ask is for tables at their sites: comity flower new FOLDER --schema common.yaml")
    taken = None if settings.pop("seats", "") == ANY else dict[int, int]()

    def link(config: Config, site: Site) -> Link:
        return GridLink(grid, len(site.federation), config.key, taken=taken, **settings)

    plan = RunPlan(config, own.federation(config), link)
    plan.extensions.insert(0, AtSites())
    _, server = plan.build()
    server.link.run_id = f"ask-{token_hex(8)}"
    answer = ask_sites(server, plan.federation, seeds, partial(log, INFO, "%s"))
    Console(file=(page := StringIO()), width=160).print(answer)
    for line in page.getvalue().splitlines():
        log(INFO, "%s", printable(line.rstrip()))
    return answer


def _link_settings(given: Mapping[str, UserConfigValue]) -> dict[str, Any]:
    """Arguments of ``GridLink`` from the app's entries ``flower.*``."""
    named = {"timeout": "answer", "timeout-query": "query", "wait": "start", "wait-absent": "absent"}
    patience: dict[str, Any] = {named[key]: float(value) for key, value in given.items() if key in named}
    verbs = {key: float(value) for key, value in given.items() if key.startswith("timeout-") and key not in named}
    if unknown := given.keys() - named.keys() - verbs.keys() - {"clients", "seats", "resume"}:
        known = "timeout, timeout-<verb>, wait, wait-absent, clients, seats, resume, ask"
        raise ComityError(f"unknown setting {OURS}.{min(unknown)}; known: {known}")
    patience["verbs"] = {key.removeprefix("timeout-"): limit for key, limit in verbs.items() if limit}
    seats = str(given.get("seats", ""))
    return {
        "patience": Patience(**patience),
        "at_least": int(given.get("clients", 0)) or None,
        "seats": seats,
        "owners": {} if seats == ANY else read_seats(seats),
    }


def read_seats(text: str) -> dict[int, int | bytes]:
    """Parse ``0:8190378265 1:AAAAE2VjZHNhLXNo…``: the node that may be each client, by id or public key.

    The key is the second word of the file that ``ssh-keygen`` wrote (``site-1.key.pub``).
    """
    owners: dict[int, int | bytes] = {}
    for entry in text.replace(",", " ").split():
        cid, _, owner = entry.partition(":")
        if not cid.isdecimal() or int(cid) in owners or not owner:
            raise ComityError(
                f"{OURS}.seats has {entry[:60]!r}; it must hold each client once, as 3:<node id> or 3:<public key>"
            )
        owners[int(cid)] = int(owner) if owner.isdecimal() else _public_key(owner)
    return owners


def _public_key(encoded: str) -> bytes:
    """Convert a public key from ``ssh-keygen``'s form to the SuperLink's (PEM)."""
    try:
        blob = base64.b64decode(encoded, validate=True)
        kind = blob[4 : 4 + int.from_bytes(blob[:4], "big")]
        key = serialization.load_ssh_public_key(kind + b" " + encoded.encode())
        return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    except Exception as error:
        raise ComityError(
            f"{OURS}.seats has {encoded[:40]!r}, which is neither a node id nor the second word of a public key's file"
        ) from error


class Logged(Callback):
    """One line per round in Flower's log, shown by ``flwr run --stream``."""

    def on_start(self, run: Run) -> None:
        log(INFO, "%s: %d clients, %d rounds", run.title, len(run.federation), run.config.last_round)

    def on_round(self, run: Run, record: RoundRecord) -> None:
        for cid, why in record.failed.items():
            log(WARNING, "Round %d: client %d failed: %s", record.round, cid, why)
        for words in record.warnings:
            log(WARNING, "Round %d: %s", record.round, words)
        accuracy = ""
        if OWN.key in record.metrics:
            clients = len(run.columns["client"])
            accuracy = f", accuracy {record.metrics[OWN.key].mean:.4f} (mean over {clients} clients)"
        log(INFO, "Round %d/%d: train loss %.4f%s", record.round, run.config.last_round, record.train_loss, accuracy)

    def on_end(self, run: Run) -> None:
        transfer = run.result.transfer if run.done else None
        if transfer is not None:
            worse = ", ".join(map(str, transfer.worse)) or "none"
            what = DECIDING[transfer.metric].label
            log(INFO, "Mean %s of local training: %.4f; clients shown to be worse: %s", what, transfer.local, worse)
        if run.folder is not None and not run.config.is_local:
            path = run.folder.path.resolve()
            log(INFO, "Run folder: %s", path)
            log(INFO, "For the page: comity report %s -o report.html", shlex.quote(str(path)))
