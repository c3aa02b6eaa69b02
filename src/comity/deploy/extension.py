"""Save each client's model at the end of a run, where the client is evaluated; nothing is sent."""

import math
from dataclasses import field
from typing import TYPE_CHECKING, Self

from comity import __version__
from comity._errors import ComityError, one_line
from comity._labels import slug
from comity._memory import show_bytes
from comity.config import BALANCED, Config
from comity.deploy.artefact import Artefact, Weighted, make_artefact, write_model
from comity.deploy.records import Performance, Provenance
from comity.engine import Expert, Extension, Judgement
from comity.metrics import DECIDING
from comity.results import Columns, Result, schema

if TYPE_CHECKING:
    from comity.engine import Run, RunPlan, Site

MOST_CLIENTS, MOST_BYTES = 100, 200 * 10**6
"""Number of clients, and bytes of all models, above which models are saved only on request."""


class SaveModels(Extension):
    """Write a folder per client to ``models/`` of the run folder. A model that cannot be saved does not end the run."""

    asked: bool
    last_round: int
    _experts: dict[int, list[Weighted]] = field(default_factory=dict, init=False)
    _problems: dict[int, str] = field(default_factory=dict, init=False)
    """By client: its models, or the reason why they cannot be saved."""

    @classmethod
    def of(cls, config: Config) -> Self | None:
        if config.save_models is False or config.out is None:
            return None
        return cls(asked=config.save_models is True, last_round=config.last_round)

    def attach(self, plan: "RunPlan", site: "Site") -> None:
        clients = len(site.federation)
        size = clients * site.initial.numel() * 4 * (1 if plan.config.is_local else 2)
        if site.federation.preprocessing is None:
            self.note = "No models are saved: the preprocessing of raw samples is unknown."
        elif (clients > MOST_CLIENTS or size > MOST_BYTES) and not self.asked:
            self.note = f"No models of {clients} clients ({show_bytes(size)}) are saved; --save-models saves them."

    def for_newcomers(self) -> Extension | None:
        """Newcomers are served after training and leave no models."""
        return None

    def judge(self, judgement: Judgement) -> None:
        """Keep the models that the client uses in the last round."""
        cid = judgement.client.id
        if self.note or judgement.client.round != self.last_round:
            return
        try:
            self._experts[cid] = experts_of(judgement)
        except Exception as error:  # the evaluation continues
            self._problems[cid] = one_line(error, 200)

    def after_training(self, run: "Run", result: Result) -> Result:
        folder, names = run.folder, run.federation.client_names
        if folder is None:
            return result
        for cid, experts in sorted(self._experts.items()):
            place = "-".join(filter(None, (f"{cid:03d}", slug(names[cid]) if names[cid] != str(cid) else "")))
            try:
                artefact = artefact_of(run.plan, cid, experts, performance_of(run, result, cid), result.written)
                write_model(folder / schema.MODELS / place, artefact)
            except Exception as error:  # a model that cannot be saved must not spoil a finished run
                self._problems[cid] = one_line(error, 200)
        saved = self._experts.keys() - self._problems.keys()
        lines = [f"Models of {len(saved)} clients: {folder / schema.MODELS}"] if saved else []
        lines += [f"No model of {one_line(names[cid], 40)} is saved: {why}." for cid, why in self._problems.items()]
        self.note = self.note or " ".join(lines[:3])
        self._experts.clear()
        return result


def artefact_of(plan: "RunPlan", cid: int, experts: list[Weighted], performance: Performance, date: str) -> Artefact:
    """The model of a client of a run, wherever the client is."""
    federation, config = plan.site.federation, plan.config
    if federation.preprocessing is None:
        raise ComityError("the preprocessing of raw samples is unknown")
    if not experts:
        raise ComityError("an extension changes predictions in a way that no file can hold")
    return make_artefact(
        model=config.model,
        experts=experts,
        preprocessing=federation.preprocessing,
        class_names=federation.class_names,
        metric=plan.site.metric,
        provenance=Provenance(
            client=one_line(federation.client_names[cid], 200),
            run=config.title(config.is_local or plan.method.brings_rule),
            key=config.key,
            data=one_line(federation.name, 200),
            fingerprint=federation.fingerprint,
            comity=__version__,
            trainer=plan.trainer,
            date=date,
            seed=config.seed,
            rounds=config.last_round,
        ),
        performance=performance,
    )


def experts_of(judgement: Judgement) -> list[Weighted]:
    """The models that a client uses, and with weight 0 its local baseline if there is one that is not used."""
    site, client = judgement.site, judgement.client
    experts = list(judgement.experts)
    baseline = site.baselines.get(site.reference)
    if experts and all(each.name != "own" for each in experts) and baseline is not None and baseline.has(client.id):
        cid, own = client.id, baseline
        experts.insert(0, Expert("own", 0.0, own.site, lambda: own.vector(cid), lambda split: own.predict(cid, split)))
    return [_weighted(judgement, each) for each in experts]


def _weighted(judgement: Judgement, expert: Expert) -> Weighted:
    site, model = expert.site, judgement.client.model
    if site is not judgement.site:
        model = site.model()
    return Weighted.of(
        expert.name,
        expert.weight,
        site.config.method,
        model,
        expert.vector(),
        judgement.expected_shares(expert.predict).tolist() if judgement.deciding == BALANCED else None,
        site.config.local_on if site.config.is_local else "",
    )


def performance_of(run: "Run", result: Result, cid: int) -> Performance:
    """The measured performance of a client's model in the last evaluation."""
    metric, transfer = DECIDING[run.site.metric].key, result.transfer
    return Performance(
        score=_of(result.clients, cid, metric),
        local=math.nan if run.local is None else _of(run.local, cid, metric),
        train_samples=int(_of(result.clients, cid, schema.TRAINING_SAMPLES)),
        test_samples=int(_of(result.clients, cid, schema.TEST_SAMPLES)),
        margin=run.config.margin,
        gain=None if transfer is None else transfer.clients.get(cid),
    )


def _of(columns: Columns, cid: int, name: str) -> float:
    """One number of a client; NaN if it was not measured."""
    values = dict(zip(columns[schema.CLIENT], columns.get(name, ()), strict=False))
    return values.get(cid, math.nan)
