"""Epsilon against the definition: δ(ε) is the integral of what one Gaussian density has beyond e^ε times another."""

import math

import numpy as np
import pytest

from comity.privacy import epsilon, gaussian


@pytest.mark.parametrize(("noise", "rounds"), [(0.8, 1), (2.0, 1), (1.0, 7), (5.0, 100)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_epsilon_is_the_one_whose_delta_is_given(noise: float, rounds: int, delta: float) -> None:
    eps, distance = epsilon(noise, rounds, delta), math.sqrt(rounds) / noise
    x = np.linspace(-40, 40, 2_000_001)
    with_client, without = np.exp(-((x - distance) ** 2) / 2), np.exp(-(x**2) / 2)
    beyond = np.maximum(0.0, with_client - np.exp(eps) * without).sum() * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    assert beyond == pytest.approx(delta, rel=1e-4)


def test_more_rounds_and_less_noise_cost_more() -> None:
    assert epsilon(2.0, 4, 1e-5) == pytest.approx(epsilon(1.0, 1, 1e-5))  # noise counts as its square
    assert epsilon(1.0, 0, 1e-5) == 0
    assert epsilon(0.0, 1, 1e-5) == math.inf
    assert epsilon(1e9, 1, 1e-5) == 0


def test_noise_is_gaussian() -> None:
    noise = np.sort(gaussian(bytes(32), 100_001))
    levels = np.array([-1.6448536, 0.0, 0.6744898, 2.3263479])  # of 5, 50, 75 and 99 %
    shares = np.searchsorted(noise, levels) / len(noise)
    assert shares == pytest.approx([0.05, 0.5, 0.75, 0.99], abs=4 * 0.5 / math.sqrt(len(noise)))
    assert not np.array_equal(gaussian(bytes(32), 9), gaussian(b"1" * 32, 9))
