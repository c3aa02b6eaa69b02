"""A rule that finds itself."""

from dataclasses import KW_ONLY, field, replace

import torch
from torch import Tensor

from comity._components import Component
from comity._errors import ComityError
from comity._options import Count, Positive, ShareAboveZero
from comity.rules._length import FACTORS, Length, harmed
from comity.rules._rule import Combination, Rule, Scope
from comity.rules._updates import ClientUpdates, TriedSteps


class Auto(Rule):
    """The one of several rules, and the step length, that clients find best: learned while the model is.

    Paper: the exponential weights are those of FedEx, Khodak et al., NeurIPS 2021.

    Equation: every few rounds clients say what the step of each arm would do to their losses, at five lengths. What a
    choice j loses is ℓⱼ = min(1, (Lⱼ − L*)/(L₀ − L*)) + (hⱼ − h*)/n, where L₀ is the mean loss before its step and Lⱼ
    after it, and hⱼ is how many of n clients it harms; * is the least over all choices. Its score is
    s ← memory·s + ℓ, its weight exp(−rate·s), and the heaviest one makes the steps until the next trial.

    Departures:
        - One arm alone is that rule exactly: nobody is asked.
        - Clients with fewer than 30 samples to try steps on are not counted as harmed; their losses count.

    Options:
        arms: rules to choose from, with commas between them; a rule's options follow its name, as in ConFREE c=0.3
        every: rounds from one trial to the next
        memory: how much of a score is left at the next trial
        rate: how fast the weight of what loses falls
    """

    arms: tuple[str, ...] = ("Mean", "ConFREE", "ConFREE by=size", "CALM scale=layer")
    _: KW_ONLY
    every: Count = 10
    memory: ShareAboveZero = 0.8
    rate: Positive = 5.0
    scope: Scope = field(default="model", init=False)  # each arm has its own
    length: Length = field(default="own", init=False)  # that of the arm, times what clients choose

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.arms:
            raise ComityError("rule.arms must name at least one rule")
        self.rules = [_rule(text) for text in self.arms]
        readings = {rule.above_local for rule in self.rules if rule.needs_losses}
        if len(readings) > 1:
            raise ComityError("rule.arms has rules that mean different things by a loss; MaxFL cannot be beside them")
        vars(self).update(needs_losses=bool(readings), above_local=True in readings)

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
        return dict(zip((f"{arm} × {factor:g}" for arm in self.arms for factor in FACTORS), weights, strict=True))

    def coefficients(self, updates: ClientUpdates) -> Combination:
        for place, rule in enumerate(self.rules):
            mine = f"{place}/"
            rule.state = {key.removeprefix(mine): value for key, value in self.state.items() if key.startswith(mine)}
        chosen = self._choose(updates) if len(self.rules) > 1 else self.rules[0].coefficients(updates)
        self._collect()
        return chosen

    def _choose(self, updates: ClientUpdates) -> Combination:
        round = int(self.state.get("round", 0))
        known: dict[int, Combination] = {}
        scores = self.state.get("scores", torch.zeros(len(self.rules), len(FACTORS), dtype=torch.float64))
        if round % self.every == 0 and len(updates):
            known = {place: rule.coefficients(updates) for place, rule in enumerate(self.rules)}
            lost = _lost([known[place].updates.try_steps(known[place].coefficients, FACTORS) for place in known])
            scores = self.memory * scores + lost
        self.state |= {"round": torch.tensor(round + 1), "scores": scores}
        place, step = divmod(int(scores.argmin()), len(FACTORS))
        chosen = known[place] if place in known else self.rules[place].coefficients(updates)
        return replace(chosen, coefficients=FACTORS[step] * chosen.coefficients)

    def remember(self, updates: ClientUpdates, update: Tensor) -> None:
        for rule in self.rules:
            rule.remember(updates, update)
        self._collect()

    def _collect(self) -> None:
        for place, rule in enumerate(self.rules):
            self.state |= {f"{place}/{name}": tensor for name, tensor in rule.state.items()}


def _lost(trials: list[TriedSteps]) -> Tensor:
    """(arms, lengths) what each choice loses to the best one."""
    change = torch.stack([(tried.after - tried.before[:, None]).mean(0) for tried in trials])
    harms = torch.stack([harmed(tried) for tried in trials]).double()
    best = float(change.min())
    behind = ((change - best) / max(-best, 1e-12)).clamp(max=1.0)
    return behind + (harms - harms.min()) / max(len(tried.before) for tried in trials)


def _rule(text: str) -> Rule:
    name, *given = text.split() or [""]
    pairs = [option.partition("=") for option in given]
    if not all(value for _, _, value in pairs):
        raise ComityError(f"rule.arms must be rules with options such as ConFREE c=0.3, got {text!r}")
    rule: Rule = Component.parse("rule", {"name": name} | {option: value for option, _, value in pairs}).build()
    return rule
