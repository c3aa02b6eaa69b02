"""`comity ask` for tables that stay at their sites: each site answers with sums, and the server adds them up.

A site is asked three kinds of questions: ``ask_known`` once, for summaries of each column; ``ask_slopes`` in each step
of the global models, for loss and gradient; ``ask_gains`` once, for the comparison with its own model. With masks
(``Verb.summed``), the server sees only the totals of the first two.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from comity._errors import ComityError
from comity.compare import ClientPairs, Paired, paired_rows
from comity.config import ACCURACY, Config
from comity.data import ClientData, Federation, Moments, Scaler, Schema
from comity.engine import BESIDE, Call, ClientState, Extension, Server, Verb
from comity.methods import Payload
from comity.metrics import DECIDING
from comity.probe import _disagreement as disagreement
from comity.probe._ask import SEEDS, Answer, answered, check, compared_at
from comity.probe._calibration import reference
from comity.probe._disagreement import Finding, Relabelled, Summary
from comity.probe._logistic import Array, Fit, Rows, fit, reply, side_by_side

if TYPE_CHECKING:
    from comity.engine import RunPlan, Site

KNOWN, SLOPES, GAINS = "ask_known", "ask_slopes", "ask_gains"
MOST_SEEDS = 60
ALL_ROWS = -1
"""Instead of a fold: training and test rows of the first fold."""
LARGEST, SMALLEST = 1e38, 2.0**-200
"""Larger numbers are rejected; smaller ones are sent as 0, as exact masked sums require."""


class Folds(Payload):
    """Asks for summaries of each column in each fold."""

    seeds: int
    features: int
    classes: int


class Known(Payload):
    """Summaries of columns. Float64 numbers are sent as int64: floats must be finite and in the range of float32."""

    bits: Tensor
    """(seeds, 4, features): `Moments` of the training rows."""
    columns: Tensor
    """(4, features): number of known values and quartiles, over all rows."""
    classes: Tensor
    """(classes,) bool: the classes that the site has."""


class Models(Payload):
    """Models for which loss and gradient are asked."""

    weights: Tensor
    """(models, features + 1, classes)."""
    folds: Tensor
    """(models,): the fold whose training rows count."""
    scalers: Tensor
    """(seeds, 2, features)."""


class Slopes(Payload):
    bits: Tensor
    """(models, 1, 2 + weights): number of rows, loss and gradient, summed over rows."""


class Trial(Payload):
    """The global model of each fold, to be compared with the site's own."""

    weights: Tensor
    scalers: Tensor
    others: Tensor | None = None
    """A model of other sites (``elsewhere``: the classes that they have)."""
    elsewhere: Tensor | None = None


class Gains(Payload):
    bits: Tensor
    """(metrics, numbers): `ClientPairs.numbers`; zeros if a metric is undefined."""
    new: Tensor | None = None
    before: float | None = None
    after: float | None = None
    """`Relabelled`, if the question has ``others``."""


class AtSites(Extension):
    """Answers the questions of ``ask_sites`` at the site of a table."""

    fold: Callable[[int, Sequence[float]], Federation] | None = field(default=None, init=False)
    """The federation as this site sees it with a seed and a scaler; unscaled without one."""
    config: Config = field(init=False)

    def attach(self, plan: "RunPlan", site: "Site") -> None:
        self.config = plan.config

    def verbs(self, verbs: dict[str, Verb]) -> dict[str, Verb]:
        return verbs | {
            KNOWN: Verb(KNOWN, Folds, Known, self._known, _not_known, summed="bits"),
            SLOPES: Verb(SLOPES, Models, Slopes, self._slopes, _no_slopes, summed="bits"),
            GAINS: Verb(GAINS, Trial, Gains, self._gains, self._no_gains),
        }

    @property
    def _metrics(self) -> list[str]:
        return metrics_of(self.config)

    def _data(self, call: Call, fold: int, scalers: Tensor | None = None) -> ClientData:
        assert self.fold is not None
        along = [] if scalers is None else scalers[fold].flatten().tolist()
        return self.fold(self.config.seed + fold, along).clients[call.cid]

    def _known(self, call: Call) -> tuple[Payload, ClientState | None]:
        asked, least = call.received, _schema_of(call.site.federation).min_count
        if not 1 <= asked.seeds <= MOST_SEEDS:
            raise ComityError(f"asked for {asked.seeds} folds; {MOST_SEEDS} are the most")
        folds = [self._data(call, fold) for fold in range(asked.seeds)]
        moments = [Moments.of(data.train.x.numpy()).without_few(least).stacked for data in folds]
        rows = Rows.of(folds[0].train, folds[0].test)
        summary = Summary.of(rows.x[:, :-1], least)
        known = Known(
            bits=_bits(np.stack(moments)),
            columns=_bits(np.concatenate([summary.known[None], summary.quartiles])),
            classes=torch.from_numpy(disagreement.classes_of(rows, asked.classes)),
        )
        return known, call.state

    def _slopes(self, call: Call) -> tuple[Payload, ClientState | None]:
        asked, rows = call.received, dict[int, Rows]()
        for fold in set(asked.folds.tolist()):
            data = self._data(call, max(fold, 0), asked.scalers)
            rows[fold] = Rows.of(data.train, data.val, *([data.test] if fold == ALL_ROWS else []))
        models = zip(asked.weights.numpy(), asked.folds.tolist(), strict=True)
        sums = np.stack([reply(weights, rows[fold]) for weights, fold in models])[:, None]
        return Slopes(bits=_bits(np.where(np.abs(sums) < SMALLEST, 0.0, sums))), call.state

    def _gains(self, call: Call) -> tuple[Payload, ClientState | None]:
        asked, pairs = call.received, dict[str, list[Paired]]((name, []) for name in self._metrics)
        runs = [self.config.seed + fold for fold in range(len(asked.weights))]
        for fold, seed in enumerate(runs):
            data = self._data(call, fold, asked.scalers)
            for name, pair in compared_at(data, asked.weights[fold].numpy(), seed, self._metrics):
                pairs[name].append(pair)
        numbers = np.zeros((len(pairs), ClientPairs.width(len(runs))))
        for row, (name, each) in zip(numbers, pairs.items(), strict=True):
            row[:] = ClientPairs.of(each, name).numbers(runs) if each else 0.0
        gains = Gains(bits=_bits(numbers))
        if asked.others is not None and asked.elsewhere is not None:
            data = self._data(call, 0, asked.scalers)
            rows = Rows.of(data.train, data.val, data.test)
            found = disagreement.relabelled(rows, asked.others.numpy(), asked.elsewhere.numpy())
            gains.new, gains.before, gains.after = torch.from_numpy(found.new), found.before, found.after
        return gains, call.state

    def _no_gains(self, sent: Payload, reply: Payload) -> str | None:
        assert isinstance(sent, Trial)
        assert isinstance(reply, Gains)
        seeds, classes = len(sent.weights), sent.weights.shape[2]
        if reply.bits.shape != (len(self._metrics), ClientPairs.width(seeds)) or reply.bits.dtype != torch.int64:
            return "sent gains of another shape or type"
        for name, numbers in zip(self._metrics, _floats(reply.bits), strict=True):
            try:
                pairs = ClientPairs.of_numbers(numbers, range(seeds))
            except ValueError as why:
                return str(why)
            if pairs is not None and not _is_gain(pairs, name):
                return f"sent a {DECIDING[name].label} that cannot be, or is not that of its tests"
        if sent.others is None:
            return None
        if reply.new is None or reply.new.shape != (classes,) or reply.new.dtype != torch.int64:
            return "sent classes of another shape or type"
        shares = all(share is not None and 0 <= share <= 1 for share in (reply.before, reply.after))
        return None if shares and 0 <= reply.new.min() <= reply.new.max() < classes else "sent unknown classes"


def _is_gain(pairs: ClientPairs, name: str) -> bool:
    """Whether both models' scores are possible and differ by the gain."""
    metric, values = DECIDING[name], (pairs.value, pairs.local)
    paired_rows({0: pairs}, name, 0.0, [""])  # fails here if it cannot be computed, for this site only
    rounding = 1e-6 * (1 + sum(map(abs, values)))
    possible = all(metric.low - rounding <= each <= metric.high + rounding for each in values)
    return possible and abs(metric.gain(*values) - pairs.evidence.gain) <= rounding


def _not_known(sent: Payload, reply: Payload) -> str | None:
    assert isinstance(sent, Folds)
    assert isinstance(reply, Known)
    shapes = (sent.seeds, 4, sent.features), (4, sent.features), (sent.classes,)
    if (reply.bits.shape, reply.columns.shape, reply.classes.shape) != shapes:
        return "sent sums of another shape than the schema's features"
    if (reply.bits.dtype, reply.columns.dtype, reply.classes.dtype) != (torch.int64, torch.int64, torch.bool):
        return "sent sums of another type"
    known, *quartiles = _floats(reply.columns)
    there = ~np.isnan(quartiles).any(0)
    values = np.stack(quartiles)[:, there]
    if not (np.abs(values) <= LARGEST).all() or not (np.diff(values, axis=0) >= 0).all():
        return "sent quartiles that cannot be"
    if not ((known >= 0) & (known <= 2**53)).all():
        return "sent counts that are no counts"
    return next((why for fold in _floats(reply.bits) if (why := Moments(*fold).objection()) is not None), None)


def _no_slopes(sent: Payload, reply: Payload) -> str | None:
    assert isinstance(sent, Models)
    assert isinstance(reply, Slopes)
    count, *weights = sent.weights.shape
    if reply.bits.shape != (count, 1, 2 + weights[0] * weights[1]) or reply.bits.dtype != torch.int64:
        return "sent gradients of another shape or type"
    sums = _floats(reply.bits)
    if not (np.abs(sums) <= LARGEST).all() or not (sums[..., :2] >= 0).all():
        return "sent a loss or a gradient that cannot be"
    return None


def ask_sites(
    server: Server, federation: Federation, seeds: int = SEEDS, say: Callable[[str], None] = lambda _: None
) -> Answer:
    """``comity.ask`` with the clients of a server whose plan has `AtSites` as its first extension.

    A site without a usable answer is reported by ``say`` and left out. With masks, a site that drops out ends the
    question: two sums with and without this site would reveal its own.
    """
    check(federation)
    return _Inquiry(server, federation, seeds if federation.folds else 1, say).answer()


class _SiteLeft(Exception):
    """Raised if a site dropped out."""


class _Inquiry:
    """The server's side of ``ask_sites``."""

    def __init__(self, server: Server, federation: Federation, seeds: int, say: Callable[[str], None]) -> None:
        self.server, self.federation, self.seeds, self.say = server, federation, seeds, say
        self.began, self.asked = time.perf_counter(), 0
        self.schema, self.classes = _schema_of(federation), federation.classes
        self.known: dict[int, Known] = {}
        """The first answer of each participating site."""
        self.moments: Array | None = None
        """The total over all sites, if masked."""

    def answer(self) -> Answer:
        if self.server.config.masked and not self.schema.min_count:
            raise ComityError("masked, the schema must say of how many values a sum is at least: `min_count: 10`")
        question = Folds(seeds=self.seeds, features=len(self.schema.features), classes=self.classes)
        everyone = dict.fromkeys(self.server.clients, question)
        self.known, self.moments = self._ask(KNOWN, everyone, 4 * self.seeds, self.schema.features)
        if self.moments is not None:
            why = "a site would have to send quartiles, and sums be taken without single sites"
            self.say(f"Columns and classes are not compared between sites in a masked question: {why}.")
        while True:
            if len(self.known) < 2:
                raise ComityError(f"{len(self.known)} sites are left; a federation needs at least 2")
            try:
                return self._answered()
            except _SiteLeft:
                self.__dict__.pop("scalers", None)

    @cached_property
    def scalers(self) -> Tensor:
        """(seeds, 2, features) means and factors."""
        if self.moments is not None:
            each = [Moments(*fold) for fold in self.moments.reshape(self.seeds, 4, -1)]
        else:
            sums = [_floats(known.bits) for known in self.known.values()]
            each = [Moments.together((Moments(*s[k]) for s in sums), self.schema) for k in range(self.seeds)]
        if why := next((why for moments in each if (why := moments.objection()) is not None), None):
            raise ComityError(f"the sums of all clients cannot be used: one of them {why}")
        scalers = [Scaler.of(moments) for moments in each]
        return torch.from_numpy(np.stack([(scaler.centre, scaler.factor) for scaler in scalers]))

    def _answered(self) -> Answer:
        clients, names = sorted(self.known), self.federation.client_names
        compares = self.moments is None and self.federation.folds and len(clients) >= disagreement.LEAST_SITES
        folds = [*range(self.seeds), *([ALL_ROWS] if compares else [])]
        models = self._fitted(folds, [clients] * len(folds))
        common = Trial(weights=torch.from_numpy(np.stack(models[: self.seeds])), scalers=self.scalers)
        questions, found = dict.fromkeys(clients, common), list[Finding]()
        if compares:
            summaries = [_floats(self.known[cid].columns) for cid in clients]
            sites = [Summary(known, np.stack(quartiles)) for known, *quartiles in summaries]
            found += disagreement.columns(sites, [names[cid] for cid in clients], self.schema.features)
            questions = self._left_out(clients, common, models[-1])
        replies, _ = self._ask(GAINS, questions)
        for cid, gains in replies.items() if compares else ():
            seen = Relabelled(gains.new.numpy(), gains.before, gains.after)
            found += seen.finding(names[cid], self.federation.class_names)
        for finding in found:
            self.say(f"Check: {finding}")
        runs = [self.server.config.seed + fold for fold in range(self.seeds)]
        sums = dict[str, dict[int, ClientPairs]]()
        for row, metric in enumerate(metrics_of(self.server.config)):
            pairs = {cid: ClientPairs.of_numbers(_floats(gains.bits)[row], runs) for cid, gains in replies.items()}
            sums[metric] = {cid: each for cid, each in pairs.items() if each is not None}
        return answered(sums, self.server.config, names, found, self.began)

    def _left_out(self, clients: Sequence[int], common: Trial, start: Array) -> dict[int, Trial]:
        """The question to each site, with a model of the sites in other groups."""
        groups = disagreement.groups_of(len(clients)).tolist()
        member = dict(zip(clients, groups, strict=True))
        others = [[cid for cid in clients if member[cid] != group] for group in range(max(groups) + 1)]
        models = self._fitted([ALL_ROWS] * len(others), others, start)
        return {
            cid: Trial(
                weights=common.weights,
                scalers=common.scalers,
                others=torch.from_numpy(models[group]),
                elsewhere=torch.stack([self.known[other].classes for other in others[group]]).any(0),
            )
            for cid, group in member.items()
        }

    def _fitted(
        self, folds: Sequence[int], clients: Sequence[Sequence[int]], start: Array | None = None
    ) -> list[Array]:
        """One model per fold, of these clients."""
        one: Fit = partial(fit, features=len(self.schema.features), classes=self.classes, start=start)
        return side_by_side(partial(self._summed, folds, clients), [one] * len(folds))

    def _summed(
        self, folds: Sequence[int], clients: Sequence[Sequence[int]], weights: Mapping[int, Array]
    ) -> dict[int, Array]:
        """The sum of the sites' replies to each model."""
        asked = Models(
            weights=torch.from_numpy(np.stack(list(weights.values()))),
            folds=torch.tensor([folds[k] for k in weights]),
            scalers=self.scalers,
        )
        names = ["rows", "loss", *(name for name in (*self.schema.features, "intercept") for _ in range(self.classes))]
        replies, total = self._ask(SLOPES, dict.fromkeys(sorted(self.known), asked), len(weights), names)
        if total is not None:
            return dict(zip(weights, total, strict=True))
        if gone := self.known.keys() - replies.keys():
            self.known = {cid: known for cid, known in self.known.items() if cid not in gone}
            raise _SiteLeft
        sums = {cid: _floats(slopes.bits)[:, 0] for cid, slopes in replies.items()}
        return {k: np.asarray(sum(sums[cid][i] for cid in clients[k])) for i, k in enumerate(weights)}

    def _ask(
        self, verb: str, questions: Mapping[int, Payload], rows: int = 0, columns: Sequence[str] = ()
    ) -> tuple[dict[int, Any], Array | None]:
        """Answers by client and, if extensions hide single answers, their total (rows, columns)."""
        asking = self.server.serving(self.server.link, BESIDE + self.asked)
        self.asked += 1
        replies = asking.ask_clients(verb, questions)
        question = next(iter(questions.values()))
        hidden = (each.total(asking, verb, question, replies, rows, columns) for each in asking.extensions if columns)
        total = next((sums for sums in hidden if sums is not None), None)
        for cid, why in asking.record.failed.items():
            self.say(f"{self.federation.client_names[cid]} is left out: {why}")
        if total is not None and asking.record.failed:
            raise ComityError("a site dropped out of a masked question; ask again with another seed")
        return replies, None if total is None else total.numpy()


def metrics_of(config: Config) -> list[str]:
    """The metric that decides, and the one by which similar clients are found."""
    metric = config.metric or ACCURACY
    return list(dict.fromkeys([metric, reference(metric)]))


def _schema_of(federation: Federation) -> Schema:
    prepare = federation.preprocessing
    if prepare is None or prepare.schema is None:
        raise ComityError("sites are asked about tables that fit a common schema: comity flower new --schema")
    return prepare.schema


def _bits(numbers: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float64)).view(torch.int64)


def _floats(bits: Tensor) -> Array:
    return np.asarray(bits.contiguous().view(torch.float64).numpy())
