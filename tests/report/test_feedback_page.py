"""The page of a deployed model."""

import re

import numpy as np
import pytest

from comity.guard import OnlineGuard
from comity.report import feedback_page


def used(metric: str = "accuracy", models: int = 2, labels: int = 700, right: float = 0.9) -> OnlineGuard:
    """A federated model that is right in so many cases, beside an own one with 80 %."""
    random, weights = np.random.default_rng(0), np.array([0.1, *([0.9 / (models - 1)] * (models - 1))])
    shares = [0.7, 0.3] if metric == "balanced" else ()
    guard = OnlineGuard.start(weights, "<b>1</b>", metric=metric, margin=0.05, share=0.0, class_shares=shares)
    hits = random.random((models, labels)) < np.array([0.8, *([right] * (models - 1))])[:, None]
    own, other = np.where(hits[0], 0.501, 0.001), np.where(hits[1:], 0.999, 0.499)
    p = np.vstack([own, other])
    guard.update(np.stack([p, 1 - p], 2), np.zeros(labels, dtype=int))
    return guard


@pytest.mark.parametrize("metric", ["accuracy", "balanced", "brier", "log-loss", "auc"])
@pytest.mark.parametrize("models", [2, 3])
def test_a_page_shows_every_line_and_runs_no_script(metric: str, models: int) -> None:
    page = feedback_page(used(metric, models), "</title><script>alert(1)</script>")
    assert "<script" not in page
    assert "<b>1</b>" not in page
    assert "&lt;b&gt;1&lt;/b&gt;" in page
    assert page.count("<polyline") == 1 + 2 + models + 1
    assert "nan" not in "".join(re.findall(r'points="([^"]*)"', page))
    assert not re.findall(r"https?://", page)


def test_the_answer_comes_first() -> None:
    guard = used(right=0.5)
    assert guard.alarmed
    page = feedback_page(guard, "ward 3")
    assert "<h1>Alarm</h1>" in page
    assert 'class="alarm"' in page
    guard.new_version("2")
    assert "<h1>No alarm</h1>" in feedback_page(guard)
    assert "<h1>Certified</h1>" in feedback_page(used())
    assert "No label has arrived yet" in feedback_page(used(labels=0))


@pytest.mark.parametrize("labels", [1, 2, 499, 501])
def test_short_and_long_histories_end_at_the_last_label(labels: int) -> None:
    page = feedback_page(used(labels=labels))
    points = re.findall(r'points="([^"]*)"', page)
    assert {each.split()[-1].split(",")[0] for each in points} == {"492.0"}
