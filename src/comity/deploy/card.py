"""The card of a model: a description for people."""

import math
from collections.abc import Iterator

from comity._errors import one_line
from comity.deploy.records import ModelInfo
from comity.metrics import DECIDING, Metric

OF_EXPERT = {"own": "the client's own model", "federated": "the federated model", "common": "the global model"}


def markdown(info: ModelInfo) -> str:
    """The card in Markdown."""
    return "\n".join(_lines(info)) + "\n"


def verdict(info: ModelInfo) -> str:
    """One sentence that compares the model with the client's own."""
    measured = info.performance
    if measured is None:
        return "Not measured."
    metric = DECIDING[info.metric]
    words = f"{metric.label} {_value(metric, measured.score)} on {measured.test_samples:,} own test samples"
    if (gain := measured.gain) is None:
        return f"{words}; not compared with local training."
    found = f"{_points(metric, gain.gain)} against local training (95 % CI {_points(metric, gain.low)} to "
    found += f"{_points(metric, gain.high)}): **{gain.state}**"
    if gain.state == "undecided" and math.isfinite(gain.detectable):
        found += f"; the tests would detect a loss of {_points(metric, gain.detectable, signed=False)} or more"
    return f"{words}, {found}."


def _lines(info: ModelInfo) -> Iterator[str]:
    about, inputs, schema = info.provenance, info.inputs, info.inputs.schema
    yield f"# Model of {_text(about.client)}"
    yield ""
    yield f"Predicts {_text(schema.target) if schema else 'a class'}: {_list(info.classes)}."
    yield ""
    yield f"- **Measured:** {verdict(info)}"
    used = [each for each in info.experts if each.weight > 0]
    yield "- **Uses:** " + " and ".join(f"{100 * each.weight:.3g} % {OF_EXPERT[each.name]}" for each in used)
    rule = "the most probable class"
    if info.metric == "balanced":
        rule = "the class with the largest p(y|x) / π(y), where π are the class shares that the model expects"
    yield f"- **Decides by:** {DECIDING[info.metric].label}; it predicts {rule}"
    yield f"- **Network:** {_text(info.model.get('name', ''))}, inputs {'×'.join(map(str, inputs.shape))}"
    if inputs.scaled:
        yield "- **Preprocessing:** every feature is standardised; a missing value is replaced by the mean"
    elif inputs.pixels:
        yield f"- **Preprocessing:** pixels from 0 to 255 become {'−1' if inputs.centred else '0'} to 1"
    yield f"- **Trained:** {_text(about.run)}, {about.rounds} rounds, seed {about.seed}, on {_text(about.data)}"
    yield f"- **Origin:** run {_text(about.key)}, data {_text(about.fingerprint)}, comity {_text(about.comity)}, " + (
        f"trainer {_text(about.trainer)}, {_text(about.date)}"
    )
    if schema is not None:
        yield ""
        yield "| column | kind | values |"
        yield "|---|---|---|"
        for name, column in schema.columns.items():
            limits = [f"{limit:g}" if limit is not None else "" for limit in (column.low, column.high)]
            values = _list(column.categories) if column.categories else " to ".join(limits) if any(limits) else ""
            yield f"| {_text(name)} | {column.kind} | {' '.join(filter(None, (values, _text(column.unit))))} |"
    yield ""
    yield "No row of any data is part of this model. The measurement is from one split of one client's samples: it "
    yield "says nothing about other places or later years."


def _list(names: "list[str] | tuple[str, ...]") -> str:
    return ", ".join(map(_text, names[:10])) + (f", … ({len(names)} in all)" if len(names) > 10 else "")


def _text(text: object) -> str:
    """Text from a file, escaped for Markdown and HTML: not every reader supports ``\\<``."""
    line = one_line(text, 80)
    line = "".join(f"\\{letter}" if letter in "\\`*_[]>|#!" else letter for letter in line)
    return line.replace("&", "&amp;").replace("<", "&lt;")


def _value(metric: Metric, value: float) -> str:
    return f"{100 * value:.1f} %" if metric.unit == "%" else f"{value:.{metric.digits}f}"


def _points(metric: Metric, value: float, signed: bool = True) -> str:
    if not math.isfinite(value):
        return "unknown"
    sign, digits = "+" if signed else "", 1 if metric.points == 100 else metric.digits
    return f"{metric.points * value:{sign}.{digits}f}".replace("-", "−") + " points" * (metric.points == 100)
