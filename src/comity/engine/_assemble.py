"""Both sides of a run from its configuration: clients with their data, the site where they work, and the server."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from comity._components import Component
from comity._errors import ComityError
from comity._random import generator
from comity.config import CLIENTS, MODEL, PARTITION, Config, default
from comity.data import (
    DATASETS,
    ClientData,
    Dataset,
    Federation,
    Split,
    Synthetic,
    federate,
    fingerprint,
    load,
    natural_clients,
)
from comity.engine._attacks import Attack
from comity.engine._disk import Disk
from comity.engine._link import Link, Threads
from comity.engine._masked_verbs import check_masked, masked_verbs
from comity.engine._optimiser import Training
from comity.engine._server import Server, cohort_size
from comity.engine._site import Site
from comity.engine._trainer import TrainerName
from comity.engine._verbs import Verb, verbs_of
from comity.methods import Method
from comity.nn import with_head
from comity.rules import Rule, ServerStep, Sketch, check_sketch

Links = Callable[[Config, Site], Link]
"""Makes the way to a run's clients."""


def federation_of(config: Config, dataset: Dataset | Synthetic | None = None) -> Federation:
    """The clients with their data, or with those of a data set in place of the configuration's."""
    dataset = dataset or _dataset_of(config)
    own = isinstance(dataset, Synthetic) or dataset.owner is not None
    partition = config.partition or (None if own else Component.parse("partition", PARTITION))
    return federate(
        dataset,
        partition.build() if partition is not None else None,
        clients=config.clients,
        seed=config.seed,
        test_share=config.test_share,
        val_share=config.val_share,
        newcomers=config.newcomers,
    )


def fingerprint_of(config: Config) -> str | None:
    """The fingerprint of the data that this configuration would learn from; ``None`` of data that it makes itself."""
    dataset = _dataset_of(config)
    return None if isinstance(dataset, Synthetic) else fingerprint(dataset)


def _dataset_of(config: Config) -> Dataset | Synthetic:
    given = {key: value for key, value in config.data.options.items() if value is not None}
    return load(config.data.name, config.data_dir, config.data_limit, **given)


def settled(config: Config, federation: Federation | None = None) -> Config:
    """The configuration with the device that is here, and the clients and the model that its data ask for.

    ``federation`` stands in for the configuration's own data.
    """
    if config.device == "auto":
        config = config.with_(device="cuda" if torch.cuda.is_available() else "cpu")
    if federation is not None and config.clients not in (None, len(federation)):
        raise ComityError(f"clients is {config.clients}, but the federation that was given has {len(federation)}")
    if config.clients is not None and config.model is not None:
        return config
    clients, dimensions = None, 3
    known = DATASETS.get(config.data.name)
    if federation is not None:
        clients, dimensions = len(federation), len(federation.shape)
    elif known is None or not known.images:
        data = _dataset_of(config)
        own = config.partition is None or config.partition.name == "natural"
        clients, dimensions = natural_clients(data) if own else None, len(data.shape)
    return config.with_(clients=config.clients or clients or CLIENTS, model=config.model or MODEL[dimensions])


def site_of(config: Config, federation: Federation | None = None, trainer: TrainerName | None = None) -> Site:
    """All that clients need; the same on every machine of a federation."""
    config = settled(config, federation)
    everybody = _on_device(federation or federation_of(config), config.device)
    federation = _without_newcomers(everybody, config)
    training, method = Training.of(config), config.method.build()
    rule = rule_of(config, method)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(config.seed, "initial model").initial_seed())
        net = config.model.build(shape=federation.shape, classes=federation.classes)
        net = with_head(net, federation.shape, federation.classes)
    site = Site(
        federation,
        net,
        method,
        training,
        seed=config.seed,
        buffers=config.buffers,
        moment=config.moment,
        losses=rule.needs_losses,
        tries_steps=rule.tries_steps,
        s_acc_share=config.s_acc_share,
        training_passes=_training_passes(config, federation),
        attack=Attack.by_share(config.attack, config.malicious, len(federation), config.seed),
        device=config.device,
        trainer=trainer or (None if config.trainer == "auto" else config.trainer),
        guard=None if config.guard is None else config.guard.build(),
        whole_from=first_whole_round(config),
    )
    site.everybody = everybody
    if config.masked:
        _mask(site, config, rule)
    return site


def _mask(site: Site, config: Config, rule: Rule) -> None:
    """Have the clients of a site hide their updates; what cannot run so is refused."""
    from comity.engine._masked_clients import masked_clients  # it needs an extra

    check_masked(config, site.method, rule, cohort_size(len(site.federation), config.participation))
    site.masked = masked_clients(config, site.model(), rule, len(site.federation))
    site.verbs = masked_verbs(site.verbs)


def _training_passes(config: Config, federation: Federation) -> float:
    """Samples that go through the net in a run's training, forward and backward (which is twice the work), for each
    time that it asks for S-acc and G-acc.
    """
    samples = sum(len(client.train) for client in federation.clients)
    of_a_round = config.epochs * samples if config.steps is None else config.steps * config.batch_size * len(federation)
    times = sum(config.general_in(round) for round in range(1, config.last_round + 1))
    return 3 * config.rounds * config.participation * of_a_round / max(times, 1)


def _without_newcomers(everybody: Federation, config: Config) -> Federation:
    """The clients that train."""
    if not config.newcomers:
        return everybody
    count = len(everybody) - config.newcomers
    if count < 1 or cohort_size(count, config.participation) < 1:
        raise ComityError(
            f"newcomers is {config.newcomers} of {len(everybody)} clients, with a participation of "
            f"{config.participation} of the others: nobody is left to train"
        )
    return everybody.first(count)


def first_whole_round(config: Config) -> int | None:
    """From which round on clients train on their validation samples too; ``None``: never."""
    if config.is_local:
        return 1 if config.local_on == "all" else None
    return config.rounds + 1 if config.refit else None


def rule_of(config: Config, method: Method[Any, Any]) -> Rule:
    """The run's rule, or the one that the method brings along."""
    own = method.own_rule()
    if own is not None and config.rule.name != default("rule"):
        raise ComityError(f"method {config.method} brings its own rule; leave --rule out, got {config.rule}")
    for option in ("server_lr", "server_momentum"):
        if own is not None and (given := getattr(config, option)) != default(option):
            raise ComityError(f"method {config.method} brings its own rule; leave {option} out, got {given}")
    rule: Rule = own or config.rule.build()
    check_sketch(sketch_of(config), rule)
    return rule


def sketch_of(config: Config) -> Sketch | None:
    """What rules see of updates, if that is not the products of whole ones."""
    return None if config.sketch is None else Sketch.of(config.sketch)


def verbs_for(config: Config) -> dict[str, Verb]:
    """All that this run's clients can be asked to do, by name."""
    method = config.method.build()
    verbs = verbs_of(method, rule_of(config, method).tries_steps)
    return masked_verbs(verbs) if config.masked else verbs


def threads(config: Config, site: Site) -> Link:
    """The way to clients that are on this machine."""
    disk = Disk(config.out) if config.store == "disk" else None
    return Threads(site, config.workers or os.cpu_count() or 1, disk)


def build(
    config: Config,
    federation: Federation | None = None,
    link: Links = threads,
    trainer: TrainerName | None = None,
) -> tuple[Site, Server]:
    """Both sides of a run: by default on this machine, with another ``link`` wherever that leads."""
    config = settled(config, federation)
    site = site_of(config, federation, trainer)
    model = site.model()
    way = link(config, site)
    kind: Callable[..., Server] = Server
    if site.masked is not None:
        from comity.engine._masked_server import MaskedServer

        kind = partial(MaskedServer, masked=site.masked, delta=config.dp_delta)
    server = kind(
        site.method,
        rule_of(config, site.method),
        way,
        theta=model.read("shared"),
        layout=model.layout("shared"),
        variances=model.variances("shared"),
        seed=config.seed,
        participation=config.participation,
        dropout=config.dropout,
        lr=site.training.rate,
        attack=site.attack,
        server_step=ServerStep(config.server_lr, config.server_momentum),
        max_share=config.max_share,
        clip_updates=config.clip_updates,
        sketch=sketch_of(config),
    )
    return site, server


def _on_device(federation: Federation, device: str) -> Federation:
    """The same clients with their samples where they are trained."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ComityError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from error

    def moved(split: Split) -> Split:
        return Split(split.x.to(device), split.y.to(device))

    if device == "cpu":
        return federation
    clients = [ClientData(c.id, moved(c.train), moved(c.val), moved(c.test)) for c in federation.clients]
    there = replace(federation, clients=tuple(clients))
    vars(there)["fingerprint"] = federation.fingerprint
    return there
