"""The plan of a run: configuration settled once, data read once, and server and site built from them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from comity._components import Component
from comity._datasets import whereabouts
from comity._errors import ComityError
from comity._random import generator
from comity.config import ACCURACY, BALANCED, CLIENTS, MLP, MODEL, PARTITION, Config, default
from comity.data import (
    DATASETS,
    Dataset,
    Federation,
    Split,
    Synthetic,
    federate,
    fingerprint,
    load,
    natural_clients,
)
from comity.engine._disk import Disk
from comity.engine._extension import Extension, extensions_of
from comity.engine._link import Link, Threads
from comity.engine._server import Server
from comity.engine._site import Site, verbs_for
from comity.engine._trainer import trainer_name
from comity.engine._verbs import Verb
from comity.methods import Method
from comity.nn import with_head
from comity.rules import Rule

Links = Callable[[Config, Site], Link]
"""Creates the link to a run's clients."""


def threads(config: Config, site: Site) -> Link:
    """The link to clients on this machine."""
    disk = Disk(config.out) if config.store == "disk" else None
    return Threads(site, config.workers or os.cpu_count() or 1, disk)


class RunPlan:
    """Everything that a run consists of. Each part is created on first access, and only once."""

    def __init__(
        self,
        config: Config,
        federation: Federation | None = None,
        link: Links = threads,
        *,
        dataset: Dataset | Synthetic | None = None,
        node: Mapping[str, Any] | None = None,
    ) -> None:
        """``federation`` or ``dataset`` replace the configured data; ``node``: a Flower site's node configuration."""
        self.given, self.link, self.node = federation, link, node or {}
        if dataset is not None:
            vars(self)["dataset"] = dataset
        self.config = config
        self.config = self._settled()

    def _settled(self) -> Config:
        """The configuration with device, clients, model and metric filled in."""
        config, federation = self.config, self.given
        if config.device == "auto":
            config = config.with_(device="cuda" if torch.cuda.is_available() else "cpu")
        if federation is not None and config.clients not in (None, len(federation)):
            raise ComityError(f"clients is {config.clients}, but the federation that was given has {len(federation)}")
        if None not in (config.clients, config.model, config.metric):
            return config
        clients, dimensions, uneven = None, 3, False
        known = DATASETS.get(config.data.name)
        own = config.partition is None or config.partition.name == "natural"
        if federation is not None:
            clients, dimensions, uneven = len(federation), len(federation.shape), federation.uneven
        elif known is None or not known.images:
            clients, dimensions = natural_clients(self.dataset) if own else None, len(self.dataset.shape)
            uneven = not isinstance(self.dataset, Synthetic) and bool(self.dataset.imbalance(by_client=own))
        elif own and config.clients is None and _is_of_pfllib(config):
            clients = natural_clients(self.dataset)
        return config.with_(
            clients=config.clients or clients or CLIENTS,
            model=config.model or self._usual_model(dimensions),
            metric=config.metric or (BALANCED if uneven else ACCURACY),
        )

    def _usual_model(self, dimensions: int) -> str:
        """The default architecture: logistic for vectors, unless the method shares only the body or only the head."""
        parts = {"body", "head"} & set(self.method.shared)
        return MLP if dimensions == 1 and len(parts) == 1 else MODEL[dimensions]

    # Data.

    @cached_property
    def dataset(self) -> Dataset | Synthetic:
        config = self.config
        given = {key: value for key, value in config.data.options.items() if value is not None}
        return load(config.data.name, config.data_dir, config.data_limit, **given)

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the data set; ``None`` for synthetic data."""
        return None if isinstance(self.dataset, Synthetic) else fingerprint(self.dataset)

    @cached_property
    def everyone(self) -> Federation:
        """All clients with their data, including newcomers."""
        return _on_device(self.given or self._federate(), self.config.device)

    def _federate(self) -> Federation:
        config, dataset = self.config, self.dataset
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

    @cached_property
    def federation(self) -> Federation:
        """The clients that train."""
        federation = self.everyone
        for extension in self.extensions:
            federation = extension.participants(federation)
        return federation

    # Method and rule.

    @cached_property
    def method(self) -> Method[Any, Any]:
        method: Method[Any, Any] = self.config.method.build()
        return method

    @cached_property
    def rule(self) -> Rule:
        """The run's rule, or the method's own."""
        config, own = self.config, self.method.own_rule()
        for option in ("rule", "server_lr", "server_momentum"):
            given = getattr(config, option)
            if own is not None and (given.name if option == "rule" else given) != default(option):
                shown = "--rule" if option == "rule" else option
                raise ComityError(f"method {config.method} brings its own rule; leave {shown} out, got {given}")
        rule: Rule = own or config.rule.build()
        if not rule.has_coefficients:
            raise ComityError(f"rule {config.rule} has no coefficients, which a run needs; it is for comity aggregate")
        return rule

    @cached_property
    def extensions(self) -> list[Extension]:
        return extensions_of(self.config, self.rule)

    @property
    def verbs(self) -> dict[str, Verb]:
        """The verbs of the run (what its clients can be asked to do), by name."""
        return verbs_for(self.method, self.extensions)

    # Server and site.

    @cached_property
    def site(self) -> Site:
        """The client side of the run: data, network and method; equal on every machine of a federation."""
        config, federation = self.config, self.federation
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(config.seed_for_training, "initial model").initial_seed())
            net = config.model.build(shape=federation.shape, classes=federation.classes)
            net = with_head(net, federation.shape, federation.classes)
        site = Site(config, federation, net, self.method, self.extensions)
        for extension in self.extensions:
            extension.attach(self, site)
        return site

    @property
    def trainer(self) -> str:
        """Name of the training backend, with its vector width, which affects rounding."""
        return trainer_name(self.site.trainer, self.config.device)

    def build(self) -> tuple[Site, Server]:
        """Build both sides of the run."""
        return self.site, Server(self.config, self.site, self.rule, self.link(self.config, self.site))

    # Derived plans.

    def local_baseline(
        self, on: Literal["all", "train"] | None = None, *, everyone: bool = False, repeat: bool = False
    ) -> "RunPlan":
        """The plan of the local baseline, on the same data.

        ``everyone``: include newcomers; ``repeat``: use another training seed.
        """
        config = self.config.local_baseline(on, repeat=repeat)
        if everyone:
            return RunPlan(config, self.everyone)
        if self.given is not None:
            return RunPlan(config, self.given, self.link)
        plan = RunPlan(config, link=self.link, dataset=self.dataset)
        if config.val_share == self.config.val_share:
            vars(plan)["everyone"] = self.everyone
        return plan

    def at(self, out: Path) -> "RunPlan":
        """The same plan with another run folder."""
        plan = RunPlan.__new__(RunPlan)
        vars(plan).update(vars(self))
        plan.config = self.config.with_(out=out)
        return plan

    @property
    def is_given(self) -> bool:
        """Whether the run uses Python objects that the configuration cannot represent."""
        by_hand = any(
            each is not None and each.given is not None for each in (self.config.model, self.config.partition)
        )
        return self.given is not None or self.link is not threads or by_hand


def _on_device(federation: Federation, device: str) -> Federation:
    """The same clients, with their samples on the training device."""
    if device == "gpu" or device.isdigit():
        raise ComityError(f"unknown device {device!r}; did you mean {'cuda' if device == 'gpu' else f'cuda:{device}'}?")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ComityError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from error

    def moved(split: Split) -> Split:
        return Split(split.x.to(device), split.y.to(device))

    if device == "cpu":
        return federation
    clients = [replace(c, train=moved(c.train), val=moved(c.val), test=moved(c.test)) for c in federation.clients]
    there = replace(federation, clients=tuple(clients))
    vars(there)["fingerprint"] = federation.fingerprint
    return there


def _is_of_pfllib(config: Config) -> bool:
    """Whether a known data set is in a folder of PFLlib, which has clients of its own."""
    try:
        path = whereabouts(config.data.name, config.data_dir)
    except ComityError:  # reported when the data set is loaded
        return False
    return path is not None and (path / "config.json").is_file()
