"""Colours that people with any of the three colour blindnesses tell apart."""

import numpy as np
import pytest

from comity.report._assets import themes

# Machado, Oliveira and Fernandes (2009), full severity, on linear sRGB
SIGHT = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_LMS = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
TO_LMS.append([0.0883024619, 0.2817188376, 0.6299787005])
TO_LAB = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099]]
TO_LAB.append([0.0259040371, 0.7827717662, -0.808675766])


def linear(colours: list[str]) -> np.ndarray:  # type: ignore[type-arg]
    values = np.array([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in colours])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(np.cbrt(np.clip(rgb, 0, 1) @ np.transpose(TO_LMS)) @ np.transpose(TO_LAB))


def contrast(a: str, b: str) -> float:
    low, high = sorted(linear([a, b]) @ [0.2126, 0.7152, 0.0722])
    return float((high + 0.05) / (low + 0.05))


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_told_apart(theme: str, sight: str) -> None:
    colours = themes()[theme]
    seen = oklab(linear([*colours["series"], colours["harm"], colours["gain"]]) @ np.transpose(SIGHT[sight]))
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + np.eye(len(seen))
    assert apart[:-2, :-2].min() > 0.08  # Okabe and Ito's eight reach 0.076
    assert apart[-2, -1] > 0.1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_letters_can_be_read(theme: str) -> None:
    colours = themes()[theme]
    assert contrast(colours["ink"], colours["page"]) > 12
    assert contrast(colours["soft"], colours["page"]) > 4.5
    assert contrast(colours["harm"], colours["page"]) > 4.5
    assert min(contrast(colour, colours["page"]) for colour in colours["series"]) > 2.2
