"""Any rule in an NVFlare job, 2.7 or newer: ``FedAvgRecipe(aggregator=RuleAggregator("ConFREE"), ...)``."""

import math
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comity._components import Component
from comity._errors import ComityError, install, one_line
from comity._layout import STATISTICS
from comity.rules import DroppedWarning, Rule, Updates

try:
    from nvflare.apis.fl_constant import FLMetaKey
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.abstract.model import ModelLearnableKey
    from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
    from nvflare.app_common.app_constant import AppConstants
except ImportError as error:
    raise ComityError(f"nvflare is not installed: {install('nvflare')}") from error

Numbers = dict[str, Tensor]


class RuleAggregator(ModelAggregator):  # type: ignore[misc]
    """Combine the clients' updates by a rule; unusable ones are left out and logged.

    ``rule`` is a name or a mapping, ``{"name": "ConFREE", "c": 0.4}``, of plain values, because NVFlare writes them
    into the job's configuration. Sizes are the numbers of steps that clients report. ``loss_key`` is the metric with a
    client's loss, for rules that need it. Clients may send whole models or differences.
    """

    def __init__(self, rule: str | dict[str, Any] = "ConFREE", loss_key: str = "loss") -> None:
        super().__init__()
        self.rule, self.loss_key = rule, loss_key  # NVFlare looks for these names
        built = Component.parse("rule", rule).build()
        assert isinstance(built, Rule)
        self._rule = built
        self.reset_stats()

    def reset_stats(self) -> None:
        self._updates: dict[str, Numbers] = {}
        self._models: dict[str, FLModel] = {}

    def accept_model(self, model: FLModel) -> None:
        """Accept a client's model in this round, or leave it out and log the reason."""
        name = one_line((model.meta or {}).get("client_name", AppConstants.CLIENT_UNKNOWN), 80)
        try:
            if name in self._updates:
                raise ComityError("it has sent something already")
            self._updates[name], self._models[name] = self._update(model), model
        except ComityError as error:
            self.warning(f"left out {name}: {error}")

    def aggregate_model(self) -> FLModel:
        """The round's difference to the global model; empty, so without effect, if no client is left."""
        names = sorted(self._updates)  # independent of the order of arrival, for the same bits
        update = self._combined(names) if names else {}
        if not update:
            self.error("no client's model can be used; the global model stays as it is")
        return FLModel(params_type=ParamsType.DIFF, params=update)

    def _combined(self, names: list[str]) -> dict[str, Any]:
        models = [self._models[name] for name in names]
        losses = [_number((model.metrics or {}).get(self.loss_key), math.nan) for model in models]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DroppedWarning)
            u = Updates(
                [_only(self._updates[name], statistics=False) for name in names],
                ids=names,
                sizes=[_steps(model) for model in models],
                losses=losses if self._rule.needs_losses else None,
            )
            done = self._rule.apply(u)
        for warning in caught:
            self.warning(str(warning.message))
        if not len(u):
            return {}
        self.info(f"{self._rule!r} combined {', '.join(map(str, u.ids))}")
        update = u.layout.state_dict(done.update)
        for client, share in zip(u.ids, u.shares.tolist(), strict=True):
            for name, value in _only(self._updates[str(client)], statistics=True).items():
                update[name] = update.get(name, 0) + share * value
        first = self._models[str(u.ids[0])].params
        return {name: _like(first[name], value) for name, value in update.items()}

    def _update(self, model: FLModel) -> Numbers:
        """The client's update, floating-point numbers only: counters stay unchanged."""
        base = self._global()
        sent = _tensors(model.params)
        if model.params_type != ParamsType.DIFF and base is None:
            raise ComityError("there is no global model to compare it with; have clients send differences (DIFF)")
        if base is not None:
            for name in sent.keys() ^ base.keys():
                raise ComityError(f"{name!r} is {'missing' if name in base else 'not in the global model'}")
            for name, value in sent.items():
                if value.shape != base[name].shape:
                    raise ComityError(f"{name!r} has shape {tuple(value.shape)}, not {tuple(base[name].shape)}")
        if model.params_type != ParamsType.DIFF:
            assert base is not None
            sent = {name: value - base[name] for name, value in sent.items()}
        for name, value in sent.items():
            if not bool(torch.isfinite(value).all()):
                raise ComityError(f"{name!r} is not finite")
        return sent

    def _global(self) -> Numbers | None:
        found = None if self.fl_ctx is None else self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        return _tensors(found[ModelLearnableKey.WEIGHTS]) if found else None


def _tensors(params: Any) -> Numbers:
    """The floating-point tensors, in float32 or, if they have it, float64."""
    if not isinstance(params, dict) or not params:
        raise ComityError("it holds no parameters by name")
    found = {}
    for name, value in params.items():
        if not isinstance(value, (np.ndarray, np.generic, Tensor)):
            raise ComityError(f"{name!r} is of type {type(value).__name__}, not an array")
        try:
            tensor = torch.as_tensor(value)
        except TypeError as error:
            raise ComityError(f"{name!r} cannot be read ({one_line(error, 100)})") from error
        if tensor.is_floating_point():
            found[str(name)] = tensor.detach().cpu().to(torch.promote_types(tensor.dtype, torch.float32))
    return found


def _only(numbers: Numbers, *, statistics: bool) -> Numbers:
    """Only the running statistics, or everything else."""
    return {name: value for name, value in numbers.items() if name.endswith(STATISTICS) == statistics}


def _steps(model: FLModel) -> float:
    """NVFlare's own weight: 1 if a client reports none or an invalid one."""
    steps = _number((model.meta or {}).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND), 1.0)
    return steps if 0 < steps < math.inf else 1.0


def _number(value: Any, otherwise: float) -> float:
    try:
        return otherwise if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise


def _like(sent: Any, value: Tensor) -> Any:
    """In the form that clients sent: array or tensor, with the same dtype."""
    return value.to(sent.dtype) if isinstance(sent, Tensor) else value.numpy().astype(sent.dtype)
