"""The client's side: a ClientApp that does any verb of any method where the data is."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor

from comity._errors import ComityError
from comity.config import CLIENTS, Config
from comity.data import ClientData, Federation, Split
from comity.engine import ClientState, LocalModels, RunPlan, Verb
from comity.flower import _wire
from comity.flower._app import config_of
from comity.flower._keep import Keep
from comity.methods import Payload, Question, field_types
from comity.nn import Model


@dataclass(frozen=True)
class OwnData:
    """A site's own data, used in place of the configuration's federation.

    All sites must agree on ``shape`` (features; channels, time; or channels, height, width) and ``classes`` to have
    the same model. ``load`` is called where the data is, with Flower's context of that node.
    """

    shape: tuple[int, ...]
    classes: int
    load: Callable[[Context], ClientData]

    def federation(self, clients: int, mine: ClientData | None = None) -> Federation:
        """The federation as one machine sees it: its own data if it is a site, and no data of other clients."""
        nothing = Split(torch.empty(0, *self.shape), torch.empty(0, dtype=torch.int64))
        members = [ClientData(cid, nothing, nothing, nothing) for cid in range(clients)]
        if mine is not None:
            members[mine.id] = mine
        return Federation("own data", self.shape, self.classes, tuple(members), seed=0, partition="each site's own")


def client_app(
    config: Config | None = None, own: OwnData | None = None, mods: Sequence[Mod] = (), *, allow_code: bool = False
) -> ClientApp:
    """A ClientApp for ``config``, or for the app's own (pyproject.toml and ``flwr run -c``) when none is given.

    ``own`` is a site's own data instead of its part of the configuration's federation. ``mods`` see only the parameters
    that ``fit`` sends: Flower's clipping and noise make no sense for a query, an evaluation or BatchNorm's statistics.
    A method that sends more about its data is rejected. With ``allow_code`` the app's configuration may name classes
    that do not come with comity, whose code is then run.
    """
    if config is not None and mods:
        _check_mods(config)
    return _ClientApp(config, own, mods, allow_code)


class _ClientApp(ClientApp):
    """Knows its verbs only with the first message, which brings the app's configuration and so the method."""

    def __init__(self, config: Config | None, own: OwnData | None, mods: Sequence[Mod], allow_code: bool) -> None:
        super().__init__()
        self._config, self._own, self._fit_mods, self._allow_code = config, own, list(mods), allow_code
        self._runs: dict[str, Config] = {}
        """The app's configuration and those of its runs of Local, by key."""
        self._workshops: dict[tuple[str, int | None, str | None], _Workshop] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return _app_of, (self._config, self._own, self._fit_mods, self._allow_code)

    def __call__(self, message: Message, context: Context) -> Message:
        with self._lock:
            if not self._runs:
                self._runs = self._read_runs(context)
        if message.metadata.message_type == MessageType.QUERY:
            mine = MetricRecord({"partition-id": partition_id(context)})
            return Message(RecordDict({"metrics": mine, "config": ConfigRecord()}), reply_to=message)
        call: ClientAppCallable = self._work
        if message.metadata.message_type == f"{MessageType.TRAIN}.fit":
            for mod in reversed(self._fit_mods):
                call = partial(self._on_parameters, mod, call)
        return call(message, context)

    def _read_runs(self, context: Context) -> dict[str, Config]:
        config = self._config or config_of(context.run_config, allow_code=self._allow_code)
        federation = None if self._own is None else self._own.federation(config.clients or CLIENTS)
        config = RunPlan(config, federation).config
        if self._fit_mods:
            _check_mods(config)
        runs = [config, *_alone(config)]
        if not config.is_local and config.reference == config.control == "auto":
            runs.append(config.local_baseline(repeat=True))
        return {each.key: each for each in runs}

    def _on_parameters(self, mod: Mod, call_next: ClientAppCallable, message: Message, context: Context) -> Message:
        """Apply a mod to the parameters alone, and address its errors to the server (Flower addresses some elsewhere).

        BatchNorm's statistics, which lie behind the parameters, bypass it: noise could make a variance negative.
        """
        size = self._workshop(message, context).site.parameters
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

    def _work(self, message: Message, context: Context) -> Message:
        header, cid = _wire.read_header(message.content), partition_id(context)
        workshop = self._workshop(message, context)
        verb = workshop.verb_of(message.metadata.message_type)
        received = _wire.read_question(message.content, verb.message)
        torch.set_num_threads(int(context.node_config.get("threads", 1)))
        if verb.judges:
            for run, states in workshop.alone.items():
                if cid not in states and (state := Keep(context, run, cid).newest(header.place.run)) is not None:
                    states[cid] = state
        one_way = not all(extension.repeatable for extension in workshop.site.extensions)
        keep = Keep(context, header.run, cid, one_way=one_way)
        reply = workshop.work(cid, keep, verb.name, received, header)
        return Message(_wire.answer(reply), reply_to=message)

    def _workshop(self, message: Message, context: Context) -> "_Workshop":
        """Made once where a process serves many messages, as in a simulation; a real node makes it for each."""
        run, cid, own = _wire.read_header(message.content).run, partition_id(context), self._own
        if run not in self._runs:
            raise ComityError("this node has another configuration than the server; start both from the same app")
        clients = self._runs[run].clients or CLIENTS
        if cid >= clients:
            raise ComityError(f"partition-id is {cid}; this run has clients 0 to {clients - 1}")
        secrets = context.node_config.get("secrets")
        name = run, None if own is None else cid, None if secrets is None else str(secrets)
        with self._lock:
            if name not in self._workshops:
                here = {key: context.node_config.get(key) for key in ("data-dir", "data-limit", "device")}
                given = {key.replace("-", "_"): value for key, value in here.items() if value is not None}
                mine = None if own is None else own.federation(clients, replace(own.load(context), id=cid))
                self._workshops[name] = _Workshop(self._runs[run].with_(**given), mine, name[2])
            return self._workshops[name]


_APPS: dict[str, _ClientApp] = {}


def _app_of(config: Config | None, own: OwnData | None, mods: list[Mod], allow_code: bool) -> _ClientApp:
    """Unpickle an app in a worker of Flower's simulation, which happens per message: reuse the one with its sites."""
    app = _ClientApp(config, own, mods, allow_code)
    return app if config is None or own is not None or mods else _APPS.setdefault(config.key, app)


class _Workshop:
    """A site with its runs of Local, and a pool of models to work with."""

    def __init__(self, config: Config, mine: Federation | None, secrets: str | None = None) -> None:
        plan = RunPlan(config, mine, node=_secrets_of(secrets) if config.masked else None)
        self.site, self.method, self.general = plan.site, str(config.method), mine is None
        self.alone: dict[str, dict[int, ClientState]] = {}
        """What clients kept of the local baselines, by the run's key."""
        for run in _alone(config):
            states = self.alone[run.key] = {}
            self.site.add_baseline(run.local_on, LocalModels(RunPlan(run, self.site.federation).site, states))
        self._models: list[Model] = []

    def verb_of(self, message_type: str) -> Verb:
        """The verb that a message asks for; a server may not ask a client to export its model."""
        verbs = self.site.verbs
        known = {f"{MessageType.TRAIN}.{name}": verb for name, verb in verbs.items() if not verb.read_only}
        known[MessageType.EVALUATE] = verbs["evaluate"]
        if message_type not in known:
            raise ValueError(f"invalid message type {message_type!r}; known: {', '.join(sorted(known))}")
        return known[message_type]

    def work(self, cid: int, keep: Keep, verb: str, received: Payload, header: _wire.Header) -> Payload:
        if isinstance(received, Question) and not self.general:
            received = replace(received, general=False)  # S-acc and G-acc need the tests of others, which are not here
        before, round = keep.read(header.place), header.round
        try:
            model = self._models.pop()
        except IndexError:
            model = self.site.model()
        try:
            reply, after = self.site.work(model, cid, before, verb, received, round)
            keep.write(header.place, after)
            if verb == "evaluate" and keep.folder is not None:
                exported, _ = self.site.work(model, cid, after, "export", received, round)
                model.write(exported.tensors()["model"])
                keep.save_model(self.method, model.state_dict())
            return reply
        finally:
            self._models.append(model)


def _secrets_of(secrets: str | None) -> dict[str, object]:
    """How a site finds its own keys, unless this is a rehearsal."""
    from comity.privacy import Secrets  # it needs an extra

    if secrets is None:
        raise ComityError(
            "a masked run needs this client's secrets: --node-config \"secrets='/a/file'\", as `comity flower "
            "keys` writes them; secrets='none' is a rehearsal that protects nothing"
        )
    return {} if secrets == "none" else {"secrets": partial(Secrets.read, Path(secrets).expanduser())}


def _alone(config: Config) -> list[Config]:
    """The local baselines that a run is compared with or that its extensions need."""
    if config.is_local:
        return [config.local_baseline()] if config.repeats_local else []
    more = dict.fromkeys(on for extension in RunPlan(config).extensions for on in extension.baselines)
    return [config.local_baseline(), *(config.local_baseline(on=on) for on in more)]


def partition_id(context: Context) -> int:
    """Which client this node is."""
    if "partition-id" not in context.node_config:
        raise ComityError('this node does not say which client it is; start it with --node-config "partition-id=0"')
    cid = context.node_config["partition-id"]
    if type(cid) is not int or cid < 0:
        raise ComityError(f"partition-id must be a whole number from 0 on, got {cid!r}")
    return cid


def _check_mods(config: Config) -> None:
    """Reject mods if they would not see everything that a method sends about a client's data."""
    if config.masked:
        raise ComityError("mods see the parameters that a client sends, and masked it sends none; take dp_noise")
    method = config.method.build()
    more = [name for name, kind in field_types(method.reply_type).items() if kind is Tensor and name != "theta"]
    for verb in RunPlan(config).verbs.values():
        if verb.name != "fit" and not verb.read_only:
            more += [name for name, kind in field_types(verb.reply).items() if kind is Tensor]
    if more:
        raise ComityError(
            f"mods see the parameters that a client sends and nothing else, but {config.method} also sends "
            f"{', '.join(more)}, which would leave without noise; take another method or no mods"
        )
