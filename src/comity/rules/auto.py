from dataclasses import KW_ONLY, field, replace

import torch
from torch import Tensor

from comity._components import Component
from comity._errors import ComityError
from comity._options import Count, Positive, ShareAboveZero
from comity.rules._rows import Updates
from comity.rules._rule import Combination, Rule, Scope
from comity.rules._step import FACTORS, Length, harmed
from comity.rules._updates import ClientUpdates, TriedSteps


class Auto(Rule):
    """Choose among several rules and step lengths during training, by the losses that clients report.

    Paper: the exponential weights are those of FedEx, Khodak et al., NeurIPS 2021.

    Equation: in a trial, every few rounds, clients report the loss after the step of each arm at five lengths. Choice j
    is one arm at one length. Its regret is ℓⱼ = min(1, (Lⱼ − L*)/(L₀ − L*)) + (hⱼ − h*)/n, where L₀ is the mean loss
    before the step, Lⱼ the mean loss after it, and hⱼ the number of the n clients that it harms; * marks the minimum
    over all choices. Its score is s ← memory·s + ℓ and its weight exp(−rate·s). The choice with the largest weight
    makes the steps until the next trial. If a trial does not change the choice, the number of rounds to the next trial
    doubles.

    Departures:
        - With a single arm the result is exactly that rule, and there are no trials.
        - Clients with fewer than 30 samples for trials are never counted as harmed, but their losses are part of the
          mean loss.

    Options:
        arms: rules to choose from, separated by commas; options follow the rule's name, as in ConFREE c=0.3
        every: rounds from a trial to the next one, if it changed the choice; otherwise the wait doubles
        memory: factor on all earlier scores at each trial
        rate: speed at which choices with regret lose weight
    """

    arms: tuple[str, ...] = ("Mean", "ConFREE", "CALM scale=layer")
    _: KW_ONLY
    every: Count = 5
    memory: ShareAboveZero = 0.8
    rate: Positive = 5.0
    scope: Scope = field(default="model", init=False)  # each arm has its own
    length: Length = field(default="own", init=False)  # that of the arm, times the factor that clients choose

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.arms:
            raise ComityError("rule.arms must name at least one rule")
        self.rules = [_rule(text) for text in self.arms]
        self._tried: TriedSteps | None = None
        vars(self).update(needs_losses=any(rule.needs_losses for rule in self.rules))

    @property
    def needs_gram(self) -> bool:
        return any(rule.needs_gram for rule in self.rules)

    @property
    def remembers(self) -> bool:
        return any(rule.remembers for rule in self.rules)

    @property
    def tries_steps(self) -> bool:
        return len(self.rules) > 1 or self.rules[0].tries_steps

    @property
    def choice(self) -> dict[str, float]:
        if "scores" not in self.state:
            return {}
        weights = torch.softmax(-self.rate * self.state["scores"].flatten(), 0).tolist()
        return dict(zip(self._choices, weights, strict=True))

    @property
    def verdicts(self) -> dict[str, tuple[float, int]]:
        if self._tried is None:
            return {}
        judged = zip(_change(self._tried).flatten().tolist(), harmed(self._tried).flatten().tolist(), strict=True)
        return dict(zip(self._choices, judged, strict=True))

    @property
    def _choices(self) -> list[str]:
        return [f"{arm} × {factor:g}" for arm in self.arms for factor in FACTORS]

    def coefficients(self, updates: ClientUpdates) -> Combination:
        for place, rule in enumerate(self.rules):
            mine = f"{place}/"
            rule.state = {key.removeprefix(mine): value for key, value in self.state.items() if key.startswith(mine)}
        chosen = self._choose(updates) if len(self.rules) > 1 else self.rules[0].coefficients(updates)
        self._collect()
        return chosen

    def _choose(self, updates: ClientUpdates) -> Combination:
        known: dict[int, Combination] = {}
        self._tried = None
        scores = self.state.get("scores", torch.zeros(len(self.rules), len(FACTORS), dtype=torch.float64))
        wait, left = (int(self.state.get(name, 0)) for name in ("wait", "left"))
        if left == 0 and len(updates):
            known = {place: rule.coefficients(updates) for place, rule in enumerate(self.rules)}
            steps = [arm.updates.combine(arm.coefficients) for arm in known.values()]
            self._tried = updates.try_steps(steps, FACTORS)
            before, scores = scores, self.memory * scores + _regret(self._tried)
            wait = left = 2 * wait if wait and before.argmin() == scores.argmin() else self.every
        left = max(0, left - 1)
        self.state |= {"wait": torch.tensor(wait), "left": torch.tensor(left), "scores": scores}
        place, step = divmod(int(scores.argmin()), len(FACTORS))
        chosen = known[place] if place in known else self.rules[place].coefficients(updates)
        return replace(chosen, coefficients=FACTORS[step] * chosen.coefficients)

    def remember(self, updates: Updates, update: Tensor) -> None:
        for rule in self.rules:
            rule.remember(updates, update)
        self._collect()

    def _collect(self) -> None:
        self.state = {name: tensor for name, tensor in self.state.items() if "/" not in name}
        for place, rule in enumerate(self.rules):
            self.state |= {f"{place}/{name}": tensor for name, tensor in rule.state.items()}


def _regret(tried: TriedSteps) -> Tensor:
    """(arms, lengths) regret of each choice against the best one."""
    change, harms = _change(tried), harmed(tried).double()
    best = float(change.min())
    excess = ((change - best) / max(-best, 1e-12)).clamp(max=1.0)
    return excess + (harms - harms.min()) / len(tried.before)


def _change(tried: TriedSteps) -> Tensor:
    """(arms, lengths) change of the mean loss by each choice."""
    return (tried.after - tried.before[:, None, None]).mean(0)


def _rule(text: str) -> Rule:
    name, *given = text.split() or [""]
    pairs = [option.partition("=") for option in given]
    if not all(value for _, _, value in pairs):
        raise ComityError(f"rule.arms must be rules with options such as ConFREE c=0.3, got {text!r}")
    rule: Rule = Component.parse("rule", {"name": name} | {option: value for option, _, value in pairs}).build()
    if not rule.has_coefficients:
        raise ComityError(f"rule.arms must be rules that have coefficients, got {text!r}")
    return rule
