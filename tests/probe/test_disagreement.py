"""Columns and classes that one site means differently, put in on purpose."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from comity.data import Dataset, federate, load
from comity.probe import Finding, findings
from comity.probe._disagreement import UNITS, Summary, columns

NAMES = ("age", "weight", "temperature", "pressure")
CENTRES, WIDTHS = np.array([55.0, 72.0, 37.0, 128.0]), np.array([12.0, 11.0, 0.7, 17.0])


def hospitals(seed: int = 0, sites: int = 5, rows: int = 80, classes: int = 3) -> Dataset:
    """Hospitals that differ a little in every column, as hospitals do."""
    random = np.random.default_rng(seed)
    owner = np.repeat([f"h{k}" for k in range(sites)], rows)
    own = random.normal(scale=0.2, size=(sites, 4))[np.repeat(np.arange(sites), rows)]
    z = random.normal(size=(sites * rows, 4)) + own
    y = (z @ random.normal(size=(4, classes)) * 2 + random.gumbel(size=(len(z), classes))).argmax(1)
    return Dataset("made", CENTRES + WIDTHS * z, y, classes, {"client": owner})


def found(dataset: Dataset) -> list[Finding]:
    return list(findings(federate(dataset, seed=0), dataset))


def with_column(dataset: Dataset, column: int, change: object) -> Dataset:
    x = dataset.x.astype(np.float64).copy()
    there = dataset.columns["client"] == "h2"
    x[there, column] = change(x[there, column])  # type: ignore[operator]
    return replace(dataset, x=x)


@pytest.mark.parametrize("seed", range(5))
def test_sites_that_differ_a_little_are_not_named(seed: int) -> None:
    assert found(hospitals(seed)) == []


@pytest.mark.parametrize(
    ("column", "factor", "offset", "words"),
    [
        (1, 2.20462, 0, "in pounds instead of kg"),
        (1, 1000, 0, "1,000 times as small"),
        (0, 12, 0, "months instead of years"),
        (2, 1.8, 32, "in °F instead of °C"),
        (2, 1, 273.15, "in K instead of °C"),
        (3, 1 / 7.50062, 0, "in kPa instead of mmHg"),
        (3, 0.1, 0, "10 times as large"),
    ],
)
def test_a_column_in_another_unit_is_named_with_its_unit(column: int, factor: float, offset: float, words: str) -> None:
    (finding,) = found(with_column(hospitals(), column, lambda x: factor * x + offset))
    assert (finding.client, finding.kind, finding.what) == ("h2", "unit", (str(column),))
    assert words in finding.evidence
    assert "at the other sites median" in finding.evidence


def test_a_shifted_column_is_named_with_its_shift() -> None:
    (finding,) = found(with_column(hospitals(), 3, lambda x: x + 150))
    assert (finding.client, finding.kind, finding.what) == ("h2", "shift", ("3",))
    assert "probably shifted by 149: median 278" in finding.evidence


def test_exchanged_columns_are_named_together() -> None:
    dataset = hospitals()
    x, there = dataset.x.copy(), dataset.columns["client"] == "h2"
    x[np.ix_(there, [2, 3])] = x[np.ix_(there, [3, 2])]
    (finding,) = found(replace(dataset, x=x))
    assert (finding.client, finding.kind, finding.what) == ("h2", "exchange", ("2", "3"))
    assert str(finding).startswith("h2, column 2 and 3: probably exchanged: median 12")


def heart(hospital: str, change: Callable[[np.ndarray, list[int]], None]) -> list[Finding]:
    """The hospitals of ``heart``, which differ by more than those above; ``change``: a fault in one of them."""
    dataset = load("heart")
    assert isinstance(dataset, Dataset)
    assert dataset.schema is not None
    assert dataset.owner is not None
    x, there = dataset.x.astype(np.float64), np.flatnonzero(dataset.owner.astype(str) == hospital)
    rows, features = x[there], list(dataset.schema.features)
    change(rows, [features.index(name) for name in ("age", "heart_rate")])
    x[there] = rows
    return found(replace(dataset, x=x))


def test_exchanged_columns_of_sites_that_differ_are_not_two_other_units() -> None:
    def exchange(rows: np.ndarray, columns: list[int]) -> None:
        rows[:, columns] = rows[:, columns[::-1]]

    (finding,) = heart("Cleveland", exchange)
    assert (finding.client, finding.kind, finding.what) == ("Cleveland", "exchange", ("age", "heart_rate"))


def test_a_large_factor_is_found_where_the_column_differed_before() -> None:
    def per_second(rows: np.ndarray, columns: list[int]) -> None:
        rows[:, columns[1]] /= 60

    (finding,) = heart("Hungary", per_second)
    assert (finding.client, finding.kind, finding.what) == ("Hungary", "unit", ("heart_rate",))
    assert "in units 60 times as large" in finding.evidence
    assert heart("Hungary", lambda *_: None) == []


def test_a_site_that_differs_as_a_whole_is_named_once() -> None:
    dataset = hospitals()
    standardised = (dataset.x - CENTRES) / WIDTHS
    there = (dataset.columns["client"] == "h2")[:, None]
    (finding,) = found(replace(dataset, x=np.where(there, standardised, dataset.x)))
    assert (finding.client, finding.kind, finding.what) == ("h2", "site", ("0", "1", "2", "3"))
    assert str(finding).startswith("h2, 4 columns (0, 1, 2, …): far from those of all other sites")
    three = replace(dataset, x=np.where(there & (np.arange(4) < 3), standardised, dataset.x))
    assert "site" not in {finding.kind for finding in found(three)}, "few columns are named each"


@pytest.mark.parametrize("new", [[1, 0, 2], [1, 2, 0]])
def test_classes_that_are_numbered_differently_are_matched(new: list[int]) -> None:
    dataset = hospitals()
    there = dataset.columns["client"] == "h2"
    y = np.where(there, np.array(new)[dataset.y], dataset.y)
    (finding,) = found(replace(dataset, y=y))
    moved = [k for k, to in enumerate(new) if k != to]
    assert (finding.client, finding.kind, finding.what) == ("h2", "labels", tuple(str(k) for k in moved))
    assert all(f"its {to} is {k}" in finding.evidence for k, to in enumerate(new) if k != to)


def test_labels_that_count_from_one_are_matched_though_one_class_is_missing() -> None:
    dataset = hospitals()
    y = dataset.y + (dataset.columns["client"] == "h2")
    (finding,) = found(replace(dataset, y=y, classes=4, class_names=()))
    assert (finding.client, finding.what) == ("h2", ("1", "2", "3"))
    assert "its 1 is 0, its 2 is 1 and its 3 is 2" in finding.evidence


def test_a_site_with_other_class_shares_is_not_named() -> None:
    """A model of the others is wrong for most of its rows: their class is rare there, and not another one."""
    dataset, random = hospitals(classes=2, rows=200), np.random.default_rng(0)
    drop = (dataset.columns["client"] == "h2") & (dataset.y == 0) & (random.random(len(dataset)) < 0.9)
    kept = replace(
        dataset, x=dataset.x[~drop], y=dataset.y[~drop], columns={"client": dataset.columns["client"][~drop]}
    )
    assert found(kept) == []


def test_summaries_hold_no_row_and_none_of_a_few() -> None:
    x = hospitals().x[:80].astype(np.float64)
    x[:65, 1] = np.nan
    summary = Summary.of(x)
    assert np.isnan(summary.quartiles[:, 1]).all(), "15 known values are too few"
    assert np.allclose(summary.quartiles[:, 0], np.quantile(x[:, 0], [0.25, 0.5, 0.75]))
    assert summary.quartiles.size == 3 * 4


def test_two_sites_cannot_say_who_is_right() -> None:
    parts = [Summary.of(hospitals().x[:80] * k) for k in (1.0, 100.0)]
    assert list(columns(parts, ["a", "b"], NAMES)) == []


def test_units_differ_from_each_other() -> None:
    assert len(set(UNITS.values())) == len(UNITS)
    assert len({abs(factor) for factor, _ in UNITS.values() if abs(factor) != 1}) == len(UNITS) - 2


def test_a_partition_that_was_made_has_no_sites_to_compare() -> None:
    plain = hospitals()
    made = Dataset("made", plain.x, plain.y, 3)
    assert list(findings(federate(made, clients=4), made)) == []
