"""A run, from a configuration to its result."""

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from comity._components import Component
from comity._errors import ComityError
from comity._random import generator
from comity.config import PARTITION, Config, default
from comity.data import ClientData, Federation, Split, Synthetic, federate, load
from comity.engine._attacks import Attack
from comity.engine._callbacks import Callback
from comity.engine._disk import Disk
from comity.engine._evaluation import transfer
from comity.engine._folder import Folder, atomically, to_json, write_tensors, write_text
from comity.engine._link import Link, Threads
from comity.engine._optimiser import Training, optimiser_class
from comity.engine._server import Server
from comity.engine._site import Site
from comity.methods import Method
from comity.rules import Rule

Columns = dict[str, list[Any]]
Links = Callable[[Config, Site], Link]
"""Makes the way to a run's clients."""


@dataclass
class Run:
    """A run on its way, and its result when it is done. Callbacks are handed this."""

    config: Config
    federation: Federation
    site: Site
    server: Server
    folder: Folder | None
    records: list[dict[str, Any]] = field(default_factory=list)
    """One a round, as in ``rounds.jsonl``."""
    columns: Columns = field(default_factory=dict)
    """The newest evaluation, a list over clients for each metric, as in ``clients.csv``."""
    local: dict[int, float] | None = None
    """Each client's accuracy when it trains alone."""
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        alone = self.config.method.name == "Local" or self.site.method.own_rule() is not None
        return str(self.config.method) if alone else f"{self.config.method} + {self.config.rule}"

    @property
    def done(self) -> bool:
        return self.server.round >= self.config.rounds


def federation_of(config: Config) -> Federation:
    """The clients with their data."""
    given = {key: value for key, value in config.data.options.items() if value is not None}
    dataset = load(config.data.name, config.data_dir, **given)
    own = isinstance(dataset, Synthetic) or dataset.shared_out
    partition = config.partition or (None if own else Component.parse("partition", PARTITION))
    return federate(
        dataset,
        partition.build() if partition is not None else None,
        clients=config.clients,
        seed=config.seed,
        test_share=config.test_share,
        val_share=config.val_share,
    )


def on_device(federation: Federation, device: str) -> Federation:
    """The same clients with their samples where they are trained."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ComityError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from error

    def moved(split: Split) -> Split:
        return Split(split.x.to(device), split.y.to(device))

    clients = [ClientData(c.id, moved(c.train), moved(c.val), moved(c.test)) for c in federation.clients]
    return federation if device == "cpu" else replace(federation, clients=tuple(clients))


def site_of(config: Config, federation: Federation | None = None) -> Site:
    """All that clients need; the same on every machine of a federation."""
    federation = on_device(federation or federation_of(config), config.device)
    training = Training(
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        clip=config.clip,
        lr_decay=config.lr_decay,
        optimizer=config.optimizer,
        optimizer_state=config.optimizer_state,
    )
    optimiser_class(config.optimizer)
    method = config.method.build()
    method.check()
    rule = rule_of(config, method)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(config.seed, "initial model").initial_seed())
        net = config.model.build(shape=federation.shape, classes=federation.classes)
    return Site(
        federation,
        net,
        method,
        training,
        seed=config.seed,
        buffers=config.buffers,
        moment=config.moment,
        losses=rule.needs_losses,
        attack=Attack.by_share(config.attack, config.malicious, config.clients, config.seed),
        device=config.device,
    )


def rule_of(config: Config, method: Method) -> Rule:
    """The run's rule, or the one that the method brings along."""
    own = method.own_rule()
    if own is not None and config.rule.name != default("rule"):
        raise ComityError(f"method {config.method} brings its own rule; leave --rule out, got {config.rule}")
    rule: Rule = own or config.rule.build()
    return rule


def threads(config: Config, site: Site) -> Link:
    """The way to clients that are on this machine."""
    disk = Disk(config.out) if config.store == "disk" else None
    return Threads(site, config.workers or os.cpu_count() or 1, disk)


def build(config: Config, federation: Federation | None = None, link: Links = threads) -> tuple[Site, Server]:
    """Both sides of a run: by default on this machine, with another ``link`` wherever that leads."""
    site = site_of(config, federation)
    model = site.model()
    server = Server(
        site.method,
        rule_of(config, site.method),
        link(config, site),
        theta=model.read("shared"),
        layout=model.layout("shared"),
        seed=config.seed,
        participation=config.participation,
        dropout=config.dropout,
        lr=site.training.rate,
        honest=[cid for cid in range(config.clients) if cid not in site.attack.malicious],
    )
    return site, server


def run(
    config: Config | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    stop: Callable[[], bool] = lambda: False,
    federation: Federation | None = None,
    link: Links = threads,
    **options: Any,
) -> Run:
    """Train. ``run(method="FedRep", rule={"name": "ConFREE", "c": 0.4}, clients=20)`` or ``run(Config(...))``.

    Without ``out`` nothing is written. ``stop`` is asked after every round. A ``federation`` of your own stands in for
    the configuration's, and another ``link`` for the threads of this machine.
    """
    config = config.with_(**options) if config is not None else Config.of(options)
    before = torch.get_num_threads()
    # One thread for each worker, and always one for the server: the bits of a product depend on how it is cut up.
    torch.set_num_threads(1)
    try:
        return _run(config, resume, overwrite, callbacks, stop, federation, link)
    finally:
        torch.set_num_threads(before)


def _run(
    config: Config,
    resume: bool,
    overwrite: bool,
    callbacks: Sequence[Callback],
    stop: Callable[[], bool],
    federation: Federation | None,
    link: Links,
) -> Run:
    folder = Folder(config.out) if config.out is not None else None
    site, server = build(config, federation, link)
    run = Run(config, site.federation, site, server, folder)
    if folder is not None:
        folder.open(config, resume=resume, overwrite=overwrite)
        folder.add_partition(site.federation)
        if resume and folder.restore(server, config):
            run.records = folder.rewind(server.round)
        else:
            folder.rewind(0)
    run.local = _local(config, callbacks, stop, federation, link)
    if run.local is None and config.reference == "auto" and config.method.name != "Local":
        return run  # stopped while Local was training

    for callback in callbacks:
        callback.on_start(run)
    if server.round == 0:
        server.method.begin(server)
    stopping = stop()
    while not run.done and not stopping:
        record = server.step()
        stopping = stop()
        last, general = run.done, config.general_every
        if last or server.round % config.eval_every == 0:
            _, run.columns = server.evaluate(last or (general > 0 and server.round % general == 0))
            if folder is not None:
                folder.add_clients(server.round, run.columns)
        if not last and server.round % max(1, config.rounds // 10):
            record.pop("cosines", None)  # N×N numbers: ten times a run are enough to draw
        run.records.append(record)
        if folder is not None:
            folder.add_round(record)
            if last or stopping or server.round % config.checkpoint_every == 0:
                folder.save(server, config)
        for callback in callbacks:
            callback.on_round(run, record)
    if run.done:
        if not run.columns:  # resumed after the last round
            _, run.columns = server.evaluate(True)
        run.result = _result(run)
        if folder is not None:
            if config.save_models:
                _save_models(run, folder)
            write_text(folder.result_file, to_json(run.result, indent=2) + "\n")
    for callback in callbacks:
        callback.on_end(run)
    return run


def alone(config: Config) -> Config:
    """The run that this one is compared with: each client trains by itself, under the same conditions."""
    return config.with_(
        method="Local", rule="Mean", moment=None, reference="none", save_models=False, tensorboard=False, out=None
    )


def _local(
    config: Config,
    callbacks: Sequence[Callback],
    stop: Callable[[], bool],
    federation: Federation | None,
    link: Links,
) -> dict[int, float] | None:
    """Accuracy of each client alone: trained here under the same conditions unless a finished run has it."""
    if config.reference == "none" or (config.reference == "auto" and config.method.name == "Local"):
        return None
    if config.reference != "auto":
        return _accuracies(Folder(Path(config.reference)), config)
    local = alone(config)
    if config.out is None or federation is not None or link is not threads:
        # what others keep cannot be resumed here, and of data that are not the configuration's its key says nothing
        return _by_client(run(local, callbacks=callbacks, stop=stop, federation=federation, link=link).columns)
    folder = Folder(config.out.parent / ".local" / local.key)
    if not folder.finished:
        reference = run(local, out=folder.path, resume=True, callbacks=callbacks, stop=stop)
        if not reference.done:
            return None
    return _accuracies(folder, config)


def _accuracies(folder: Folder, config: Config) -> dict[int, float]:
    result = folder.result()
    count = len(result["clients"]["client"]) + len(result["malicious"])
    if count != config.clients:
        raise ComityError(f"reference {folder.path} has {count} clients, this run {config.clients}")
    return _by_client(result["clients"])


def _by_client(columns: Columns) -> dict[int, float]:
    return dict(zip(columns["client"], columns["L-acc"], strict=True))


def _result(run: Run) -> dict[str, Any]:
    """Last and best, who gained and who was harmed, what it cost, and on what it ran."""
    records, config = run.records, run.config
    evaluated = [record for record in records if "eval/L-acc/mean" in record]
    by = "val-acc" if "eval/val-acc/mean" in evaluated[-1] else "L-acc"
    best = max(evaluated, key=lambda record: record[f"eval/{by}/mean"])

    def metrics(record: dict[str, Any]) -> dict[str, Any]:
        return {"round": record["round"]} | {key: value for key, value in record.items() if key.startswith("eval/")}

    result: dict[str, Any] = {
        "title": run.title,
        "key": config.key,
        "moment": run.site.moment,
        "last": metrics(evaluated[-1]),
        "best": {"chosen by": "validation" if by == "val-acc" else "test: do not compare methods by it"}
        | metrics(best),
    }
    if run.local is not None:
        mine = _by_client(run.columns)
        both = sorted(mine.keys() & run.local.keys())
        result["transfer"] = transfer(both, [mine[cid] for cid in both], [run.local[cid] for cid in both])
    rates = [record["conflict"]["rate"] for record in records if "conflict" in record]
    result |= {
        "malicious": sorted(run.site.attack.malicious),
        "conflict-rate": sum(rates) / len(rates) if rates else None,
        "worst residual": max((record["rule"]["residual"] for record in records if "rule" in record), default=None),
        "bytes a round": {way: sum(r["bytes"][way] for r in records) / len(records) for way in ("down", "up")},
        "seconds": {
            part: sum(record["seconds"].get(part, 0.0) for record in records)
            for part in ("train", "aggregate", "evaluate")
        },
        "failures": sum(len(record.get("failed", {})) for record in records),
        "clients": run.columns,
        "written": time.strftime("%Y-%m-%d %H:%M:%S"),
        "versions": {name: version(name) for name in ("comity", "torch", "numpy", "scipy")},
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
    }
    return result


def _save_models(run: Run, folder: Folder) -> None:
    """Each client's own model under the network's own names, and the common one where there is one."""
    server, model = run.server, run.site.model()
    received = {cid: server.method.send(server, cid) for cid in server.clients}
    for cid, reply in server.ask("export", received).items():
        model.write(reply["model"])
        if "counters" in (keep := server.link.states().get(cid, {})):
            model.counters = keep["counters"]
        with atomically(folder.path / "models" / f"client_{cid:03d}.safetensors") as part:
            write_tensors(part, model.state_dict(), {"client": str(cid), "run": run.title})
