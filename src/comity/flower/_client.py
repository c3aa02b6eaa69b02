"""The client side: a ClientApp that does any verb of any method where the data is."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from logging import WARNING
from pathlib import Path
from threading import Lock

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.supercore import log
from torch import Tensor

from comity._errors import ComityError
from comity.config import CLIENTS, Config
from comity.data import Federation
from comity.engine import ClientState, LocalModels, RunPlan, Verb, brief
from comity.flower import _wire
from comity.flower._app import config_of
from comity.flower._keep import Keep
from comity.flower._model import SiteModels, Verdict
from comity.flower._own import SiteData, Tables, partition_id
from comity.methods import Payload, Question, field_types
from comity.nn import Model
from comity.probe import AtSites

REHEARSAL = "none"
"""Instead of a file with secrets: masks protect nothing."""


def client_app(
    config: Config | None = None,
    own: SiteData | None = None,
    mods: Sequence[Mod] = (),
    *,
    keep: str | None = None,
    allow_code: bool = False,
) -> ClientApp:
    """A ClientApp for ``config``, or by default for the app's configuration (pyproject.toml and ``flwr run -c``).

    ``own`` is a site's own data instead of its part of the configured federation. ``mods`` are applied only to the
    parameters that ``fit`` sends: Flower's clipping and noise make no sense for a query, an evaluation or BatchNorm's
    statistics. With mods, methods that send more than parameters are rejected. ``keep`` is the folder for client state
    if the node configuration gives none. With ``allow_code`` the app's configuration may name your own classes, whose
    code is then executed.
    """
    if config is not None and mods:
        _check_mods(config)
    return _ClientApp(config, own, mods, keep, allow_code)


class _ClientApp(ClientApp):
    """A ClientApp that knows its verbs only after the first message, which brings the app's configuration."""

    def __init__(
        self, config: Config | None, own: SiteData | None, mods: Sequence[Mod], keep: str | None, allow_code: bool
    ) -> None:
        super().__init__()
        self._config, self._own, self._fit_mods, self._allow_code = config, own, list(mods), allow_code
        self._keep: UserConfig = {} if keep is None else {"keep": keep}
        self._runs: dict[str, Config] = {}
        """The app's configuration and those of its local baselines, by key."""
        self._workers: dict[tuple[str, int | None, str | None, tuple[float, ...]], _SiteWorker] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return _app_of, (self._config, self._own, self._fit_mods, self._keep.get("keep"), self._allow_code)

    def __call__(self, message: Message, context: Context) -> Message:
        context = replace(context, node_config=self._keep | context.node_config)
        with self._lock:
            if not self._runs:
                self._runs = self._read_runs(context)
        if message.metadata.message_type == MessageType.QUERY:
            mine = MetricRecord({"partition-id": self._client(context)})
            return Message(RecordDict({"metrics": mine, "config": ConfigRecord()}), reply_to=message)
        call: ClientAppCallable = self._work
        if message.metadata.message_type == f"{MessageType.TRAIN}.fit":
            for mod in reversed(self._fit_mods):
                call = partial(self._on_parameters, mod, call)
        return call(message, context)

    def _read_runs(self, context: Context) -> dict[str, Config]:
        config = self._config or config_of(context.run_config, allow_code=self._allow_code)
        federation = None if self._own is None else self._own.federation(config)
        config = RunPlan(config, federation).config
        if self._fit_mods:
            _check_mods(config)
        runs = [config, *_local_baselines(config)]
        if not config.is_local and config.reference == config.control == "auto":
            runs.append(config.local_baseline(repeat=True))
        return {each.key: each for each in runs}

    def _client(self, context: Context) -> int:
        return partition_id(context) if self._own is None else self._own.client(context)

    def _on_parameters(self, mod: Mod, call_next: ClientAppCallable, message: Message, context: Context) -> Message:
        """Apply a mod only to the parameters, and return its errors to the server (Flower sends some elsewhere).

        BatchNorm's statistics, which follow the parameters, bypass it: noise could make a variance negative.
        """
        size = self._worker(message, context).site.parameters
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
        header, cid = _wire.read_header(message.content), self._client(context)
        self._check_policy(context, cid)
        site_worker = self._worker(message, context)
        verb = site_worker.verb_of(message.metadata.message_type)
        received = _wire.read_question(message.content, verb.message)
        torch.set_num_threads(int(context.node_config.get("threads", 1)))
        if verb.judges:
            for run, states in site_worker.baseline_states.items():
                if cid not in states and (state := Keep(context, run, cid).newest(header.place.run)) is not None:
                    states[cid] = state
        one_way = not all(extension.repeatable for extension in site_worker.site.extensions)
        keep = Keep(context, header.run, cid, one_way=one_way)
        try:
            reply = site_worker.work(cid, keep, verb.name, received, header)
        except ComityError:
            raise
        except Exception as error:
            if not one_way:
                raise
            log(WARNING, "%s failed: %s", verb.name, brief(error), exc_info=error)
            raise ComityError("failed; the site's own log says why") from None  # it may reveal something about the data
        return Message(_wire.answer(reply), reply_to=message)

    def _check_policy(self, context: Context, cid: int) -> None:
        """Reject runs that the policy of a site with secrets does not accept, whatever the app's configuration says."""
        if (file := _secrets_file(context)) is not None:
            from comity.privacy import Secrets  # it needs an extra

            Secrets.read(file, cid).policy.check(next(iter(self._runs.values())))

    def _worker(self, message: Message, context: Context) -> "_SiteWorker":
        """The worker for a message, reused if a process serves many messages, as in a simulation."""
        header, cid, own = _wire.read_header(message.content), self._client(context), self._own
        run = header.run
        if run not in self._runs:
            raise ComityError("this node has another configuration than the server; start both from the same app")
        clients = self._runs[run].clients or CLIENTS
        if cid >= clients:
            raise ComityError(f"partition-id is {cid}; this run has clients 0 to {clients - 1}")
        secrets = context.node_config.get("secrets")
        name = run, None if own is None else cid, None if secrets is None else str(secrets), header.along
        with self._lock:
            if name not in self._workers:
                here = {key: context.node_config.get(key) for key in ("data-dir", "data-limit", "device")}
                given = {key.replace("-", "_"): value for key, value in here.items() if value is not None}
                mine = None if own is None else own.at(context, self._runs[run], header.along)
                config = self._runs[run].with_(**given, save_models=False)  # a site saves its own models
                probe = None
                if isinstance(own, Tables):  # no mods run with it
                    probe = AtSites()
                    probe.fold = lambda seed, along: own.at(context, config.with_(seed=seed), along)
                self._workers[name] = _SiteWorker(config, mine, name[2], probe)
            return self._workers[name]


_APPS: dict[str, _ClientApp] = {}


def _app_of(
    config: Config | None, own: SiteData | None, mods: list[Mod], keep: str | None, allow_code: bool
) -> _ClientApp:
    """Unpickle an app in a worker of Flower's simulation, once per message: reuse the one with its sites."""
    app = _ClientApp(config, own, mods, keep, allow_code)
    return app if config is None or own is not None or mods or keep else _APPS.setdefault(config.key, app)


class _SiteWorker:
    """A site with its local baselines, and a pool of models to work with."""

    def __init__(
        self,
        config: Config,
        mine: Federation | None,
        secrets: str | None = None,
        probe: AtSites | None = None,
    ) -> None:
        self.plan = RunPlan(config, mine, node=_secrets_of(secrets) if config.masked else None)
        if probe is not None:
            self.plan.extensions.insert(0, probe)  # before the extension that masks its answers
        self.models = None if config.is_local else SiteModels()
        if self.models is not None:
            self.plan.extensions.append(self.models)
        self.site, self.general = self.plan.site, mine is None
        self.baseline_states: dict[str, dict[int, ClientState]] = {}
        """Clients' states of the local baselines, by the run's key."""
        for run in _local_baselines(config):
            states = self.baseline_states[run.key] = {}
            self.site.add_baseline(run.local_on, LocalModels(RunPlan(run, self.site.federation).site, states))
        self._models: list[Model] = []

    def verb_of(self, message_type: str) -> Verb:
        """The verb that a message asks for; a server cannot ask a client to export its model."""
        verbs = self.site.verbs
        known = {f"{MessageType.TRAIN}.{name}": verb for name, verb in verbs.items() if not verb.read_only}
        known[MessageType.EVALUATE] = verbs["evaluate"]
        if message_type not in known:
            raise ValueError(f"invalid message type {message_type!r}; known: {', '.join(sorted(known))}")
        return known[message_type]

    def work(self, cid: int, keep: Keep, verb: str, received: Payload, header: _wire.Header) -> Payload:
        if isinstance(received, Question) and not self.general:
            received = replace(received, general=False)  # S-acc and G-acc need other clients' tests, which are not here
        before, round = keep.read(header.place), header.round
        try:
            model = self._models.pop()
        except IndexError:
            model = self.site.model()
        try:
            reply, after = self.site.work(model, cid, before, verb, received, round)
            if after is not None:
                keep.write(header.place, after)
            if verb == "evaluate" and keep.folder is not None and self.models is not None:
                self.models.write(keep.folder / "model", self.plan, cid, reply, round)
            if isinstance(received, Verdict) and keep.folder is not None and self.models is not None:
                self.models.conclude(keep.folder / "model", received)
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
    return {} if secrets == REHEARSAL else {"secrets": partial(Secrets.read, Path(secrets).expanduser())}


def _secrets_file(context: Context) -> Path | None:
    """The file with this site's secrets; ``None`` without secrets, or in a rehearsal."""
    given = context.node_config.get("secrets")
    return None if given in (None, REHEARSAL) else Path(str(given)).expanduser()


def _local_baselines(config: Config) -> list[Config]:
    """The local baselines that a run is compared with or that its extensions need."""
    if config.is_local:
        return [config.local_baseline()] if config.repeats_local else []
    more = dict.fromkeys(on for extension in RunPlan(config).extensions for on in extension.baselines)
    return [config.local_baseline(), *(config.local_baseline(on=on) for on in more)]


def _check_mods(config: Config) -> None:
    """Reject mods if a method sends more about a client's data than they would see."""
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
