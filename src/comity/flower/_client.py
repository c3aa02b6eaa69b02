"""The client's side: a ClientApp that does any verb of any method where the data is."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor

from comity._errors import ComityError
from comity.config import CLIENTS, Config
from comity.data import ClientData, Federation, Split
from comity.engine import JUDGING_VERBS, READ_ONLY_VERBS, Alone, ClientState, settled, site_of, verbs_for
from comity.flower import _wire
from comity.flower._keep import Keep
from comity.flower._settings import config_of
from comity.methods import Payload, Question, field_types
from comity.nn import Model


@dataclass(frozen=True)
class OwnData:
    """Data that are a site's own, where the configuration's federation is not what is learnt from.

    ``shape`` (features; channels, time; or channels, height, width) and ``classes`` are what everybody must agree on to
    have the same model.
    ``load`` is called where the data is, with Flower's context of that node.
    """

    shape: tuple[int, ...]
    classes: int
    load: Callable[[Context], ClientData]

    def federation(self, clients: int, mine: ClientData | None = None) -> Federation:
        """All clients as one machine sees them: its own data, if it is a site, and no data of the others."""
        nothing = Split(torch.empty(0, *self.shape), torch.empty(0, dtype=torch.int64))
        members = [ClientData(cid, nothing, nothing, nothing) for cid in range(clients)]
        if mine is not None:
            members[mine.id] = mine
        return Federation("own data", self.shape, self.classes, tuple(members), seed=0, partition="each site's own")


def client_app(
    config: Config | None = None, own: OwnData | None = None, mods: Sequence[Mod] = (), *, allow_code: bool = False
) -> ClientApp:
    """A ClientApp for ``config``, or for the app's own (pyproject.toml and ``flwr run -c``) when none is given.

    ``own`` are a site's own data instead of its part of the configuration's federation. ``mods`` see the parameters
    that ``fit`` sends and nothing else: Flower's clipping and noise would make nonsense of a query, an evaluation or
    BatchNorm's statistics. A method that sends more about its data than these is refused.
    ``allow_code``: the app's configuration may name classes that do not come with comity, whose code is then run.
    """
    if config is not None and mods:
        _check_mods(config)
    return _ClientApp(config, own, mods, allow_code)


class _ClientApp(ClientApp):
    """Registers its verbs with the first message: the app's configuration, and so the method, comes with that."""

    def __init__(self, config: Config | None, own: OwnData | None, mods: Sequence[Mod], allow_code: bool) -> None:
        super().__init__()
        self._allow_code = allow_code
        self._config, self._own, self._fit_mods = config, own, list(mods)
        self._workshops: dict[tuple[str, int | None, str | None], _Workshop] = {}
        self._ready, self._lock = False, Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return _app_of, (self._config, self._own, self._fit_mods, self._allow_code)

    def __call__(self, message: Message, context: Context) -> Message:
        with self._lock:
            if not self._ready:
                self._register(self._config or config_of(context.run_config, allow_code=self._allow_code))
                self._ready = True
        return super().__call__(message, context)

    def _register(self, config: Config) -> None:
        config = settled(config, None if self._own is None else self._own.federation(config.clients or CLIENTS))
        if self._fit_mods:
            _check_mods(config)
        runs = {each.key: each for each in (config, *_alone(config))}
        verbs = {verb for each in runs.values() for verb in verbs_for(each)} - {*READ_ONLY_VERBS}

        def work(message: Message, context: Context) -> Message:
            return self._work(runs, message, context)

        for verb in sorted(verbs):
            mods = [self._mod(runs, mod) for mod in self._fit_mods] if verb == "fit" else []
            self.train(verb, mods=mods)(work)
        self.evaluate()(work)
        self.query()(_introduce)

    def _mod(self, runs: dict[str, Config], mod: Mod) -> Mod:
        """The same mod on the parameters alone, with its errors sent to the server; Flower addresses some to the reply.

        BatchNorm's statistics, which lie behind the parameters, pass by it: with noise a variance may be negative.
        """

        def on_parameters(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
            workshop = self._workshop(runs, message, context)
            size = workshop.site.parameters
            kept: list[Tensor] = []

            def whole(_: Message, context: Context) -> Message:
                reply = call_next(message, context)
                if not reply.has_error():
                    kept.append(_wire.split_theta(reply.content, size))
                return reply

            shown = copy(message)
            shown.content = RecordDict(dict(message.content))
            _wire.split_theta(shown.content, size)
            reply = mod(shown, context, whole)
            if reply.has_error():
                return Message(reply.error, reply_to=message)
            _wire.join_theta(reply.content, kept[0])
            return reply

        return on_parameters

    def _work(self, runs: dict[str, Config], message: Message, context: Context) -> Message:
        category, _, verb = message.metadata.message_type.partition(".")
        header, cid = _wire.read_header(message.content), partition_id(context)
        workshop = self._workshop(runs, message, context)
        verb = verb or category
        received = _wire.read_question(message.content, workshop.site.verbs[verb].message)
        torch.set_num_threads(int(context.node_config.get("threads", 1)))
        if verb in JUDGING_VERBS:
            for run, states in workshop.alone.items():
                if cid not in states and (state := Keep(context, run, cid).newest(header.place.run)) is not None:
                    states[cid] = state
        keep = Keep(context, header.run, cid, one_way=workshop.site.masked is not None)
        reply = workshop.work(cid, keep, verb, received, header)
        return Message(_wire.answer(reply), reply_to=message)

    def _workshop(self, runs: dict[str, Config], message: Message, context: Context) -> "_Workshop":
        """Made once where a process serves many messages, as in a simulation; a real node makes it for each."""
        run, cid, own = _wire.read_header(message.content).run, partition_id(context), self._own
        if run not in runs:
            raise ComityError("this node has another configuration than the server; start both from the same app")
        clients = runs[run].clients or CLIENTS
        if cid >= clients:
            raise ComityError(f"partition-id is {cid}; this run has clients 0 to {clients - 1}")
        secrets = context.node_config.get("secrets")
        secrets = None if secrets is None else str(secrets)
        name = run, None if own is None else cid, secrets
        with self._lock:
            if name not in self._workshops:
                here = {key: context.node_config.get(key) for key in ("data-dir", "data-limit", "device")}
                given = {key.replace("-", "_"): value for key, value in here.items() if value is not None}
                config = runs[run].with_(**given)
                mine = None if own is None else own.federation(clients, replace(own.load(context), id=cid))
                self._workshops[name] = _Workshop(config, mine, secrets)
            return self._workshops[name]


_APPS: dict[str, _ClientApp] = {}


def _app_of(config: Config | None, own: OwnData | None, mods: list[Mod], allow_code: bool) -> _ClientApp:
    """An app that arrives in a worker of Flower's simulation, with each message: the same one, with its workshops."""
    app = _ClientApp(config, own, mods, allow_code)
    return app if config is None or own is not None or mods else _APPS.setdefault(config.key, app)


class _Workshop:
    """A site, and models to lend to those who work there."""

    def __init__(self, config: Config, mine: Federation | None, secrets: str | None = None) -> None:
        self.site, self.method, self.general = site_of(config, mine), str(config.method), mine is None
        if self.site.masked is not None:
            self._reveal_to_site(secrets)
        self.alone: dict[str, dict[int, ClientState]] = {}
        """What clients kept of the runs of Local, by the run's key."""
        for run in _alone(config):
            states = self.alone[run.key] = {}
            models = Alone(site_of(run, self.site.federation), states)
            if run.key == config.alone().key:
                self.site.reference = models
            else:
                self.site.held_out = models
        self._models: SimpleQueue[Model] = SimpleQueue()

    def _reveal_to_site(self, secrets: str | None) -> None:
        """Have the site sign with its own key, where this is no rehearsal."""
        from comity.privacy import Secrets  # it needs an extra

        assert self.site.masked is not None
        if secrets is None:
            raise ComityError(
                "a masked run needs this client's secrets: --node-config \"secrets='/a/file'\", as `comity flower "
                "keys` writes them; secrets='none' is a rehearsal that protects nothing"
            )
        if secrets != "none":
            self.site.masked = replace(self.site.masked, secrets=partial(Secrets.read, Path(secrets).expanduser()))

    def work(self, cid: int, keep: Keep, verb: str, received: Payload, header: _wire.Header) -> Payload:
        if isinstance(received, Question) and not self.general:
            received = replace(received, general=False)  # S-acc and G-acc need the tests of others, which are not here
        before, model, round = keep.read(header.place), self._borrow(), header.round
        try:
            reply, after = self.site.work(model, cid, before, verb, received, round)
            keep.write(header.place, after)
            if verb == "evaluate" and keep.folder is not None:
                exported, _ = self.site.work(model, cid, after, "export", received, round)
                model.write(exported.tensors()["model"])
                keep.save_model(self.method, model.state_dict())
            return reply
        finally:
            self._models.put(model)

    def _borrow(self) -> Model:
        try:
            return self._models.get_nowait()
        except Empty:
            return self.site.model()


def _alone(config: Config) -> list[Config]:
    """The runs of Local that a run is compared with, or that its guard needs."""
    if config.is_local:
        return []
    return [config.alone(), *([] if config.guard is None else [config.alone(on="train")])]


def partition_id(context: Context) -> int:
    """Which client this node is."""
    if "partition-id" not in context.node_config:
        raise ComityError('this node does not say which client it is; start it with --node-config "partition-id=0"')
    cid = context.node_config["partition-id"]
    if type(cid) is not int or cid < 0:
        raise ComityError(f"partition-id must be a whole number from 0 on, got {cid!r}")
    return cid


def _check_mods(config: Config) -> None:
    """Refuse mods where they would not see all that a method tells of a client's data."""
    if config.masked:
        raise ComityError("mods see the parameters that a client sends, and masked it sends none; take dp_noise")
    method = config.method.build()
    more = [name for name, kind in field_types(method.reply_type).items() if kind is Tensor and name != "theta"]
    for verb in verbs_for(config).values():
        if verb.name not in ("fit", *READ_ONLY_VERBS):
            more += [name for name, kind in field_types(verb.reply).items() if kind is Tensor]
    if more:
        raise ComityError(
            f"mods see the parameters that a client sends and nothing else, but {config.method} also sends "
            f"{', '.join(more)}, which would leave without noise; take another method or no mods"
        )


def _introduce(message: Message, context: Context) -> Message:
    return Message(
        RecordDict({"metrics": MetricRecord({"partition-id": partition_id(context)}), "config": ConfigRecord()}),
        reply_to=message,
    )
