"""The minimum protection that a site accepts, whatever the server's operator asks for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from comity import __version__
from comity._errors import ComityError, unknown
from comity._options import Count, NonNegative, Positive, ShareAboveZero, ShareBetween, convert
from comity.config import Config, default


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The minimum protection of a site, in its secrets file under ``policy``; it rejects runs below it."""

    masked: bool = True
    """Whether updates must be masked."""
    min_clients: Count = default("min_clients")
    """Smallest cohort."""
    max_weight: ShareAboveZero = default("max_weight")
    """Largest weight of one client."""
    min_noise: NonNegative = 0.0
    """Smallest noise multiplier (``dp_noise``)."""
    max_epsilon: Positive | None = None
    """Largest total epsilon with these secrets, over all runs."""
    delta: ShareBetween = default("dp_delta")
    """The delta of that epsilon."""
    methods: tuple[str, ...] | None = None
    """Allowed methods; all by default."""
    rules: tuple[str, ...] | None = None
    """Allowed rules."""
    versions: tuple[str, ...] | None = None
    """Allowed versions of comity at this site."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Policy":
        types = {field.name: field.type for field in fields(cls)}
        if strange := sorted(given.keys() - types.keys()):
            raise unknown("entry of a policy", strange[0], types)
        return cls(**{name: convert(value, types[name], f"policy.{name}") for name, value in given.items()})

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def check(self, config: Config) -> None:
        """Reject a run that this site does not accept."""
        allowed = {"method": self.methods, "rule": self.rules}
        if self.masked and not config.masked:
            why = "masked is false, and this site takes part only in masked runs"
        elif config.masked and config.min_clients < self.min_clients:
            why = f"min_clients is {config.min_clients}, and this site's least is {self.min_clients}"
        elif config.masked and config.max_weight > self.max_weight:
            why = f"max_weight is {config.max_weight:g}, and this site's most is {self.max_weight:g}"
        elif config.dp_noise < self.min_noise:
            why = f"dp_noise is {config.dp_noise:g}, and this site's least is {self.min_noise:g}"
        elif self.max_epsilon is not None and not config.dp_noise:
            why = f"it has no dp_noise, and this site's largest epsilon is {self.max_epsilon:g}"
        elif self.versions is not None and __version__ not in self.versions:
            why = f"comity here is {__version__}, and this site runs {', '.join(self.versions)}"
        else:
            for kind, names in allowed.items():
                if names is not None and (name := getattr(config, kind).name) not in names:
                    raise ComityError(f"the site's policy rejects this run: {kind} {name} is not one of its {kind}s")
            return
        raise ComityError(f"the site's policy rejects this run: {why}")
