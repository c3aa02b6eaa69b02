"""S-acc, G-acc and the global model on validation samples, for studies that tune by one of them (``tune_by``)."""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from comity._errors import ComityError
from comity.engine import Extension, Judgement, TestPool, hits, predictor
from comity.metrics import GENERAL_VALIDATED

if TYPE_CHECKING:
    from comity.engine import RunPlan, Site


class GeneralValidation(Extension):
    """Measure S-acc and G-acc on validation samples too, whenever they are measured on tests."""

    metrics = tuple(GENERAL_VALIDATED.values())

    def attach(self, plan: "RunPlan", site: "Site") -> None:
        if plan.config.guard is not None:
            raise ComityError("general_validation: the guard chooses on the same validation samples; leave one out")
        if plan.config.general_every == "never":
            raise ComityError("general_validation: general_every never leaves S-acc and G-acc out; give a number")
        self._site = site

    @cached_property
    def _pool(self) -> TestPool:
        """The validation samples of all clients, in place of their tests."""
        federation, config = self._site.federation, self._site.config
        clients = tuple(replace(each, test=each.val, test_ids=each.test_ids[:0]) for each in federation.clients)
        return TestPool.of(replace(federation, clients=clients), config)

    def judge(self, judgement: Judgement) -> None:
        client, data, model = judgement.client, judgement.client.data, judgement.one_model
        if not (judgement.received.general and len(data.val) and data.val_unseen):
            return
        common = model is not None and judgement.common is model
        some, everybody = self._pool.general(client.id, judgement.predict, model, self._site.config.seed, common)
        values = {"S-acc": some, "G-acc": everybody}
        if judgement.common is not None:
            values["global-acc"] = float(hits(predictor(client, judgement.common)(data.val), data.val).double().mean())
        judgement.notes |= {GENERAL_VALIDATED[name].field: value for name, value in values.items()}
