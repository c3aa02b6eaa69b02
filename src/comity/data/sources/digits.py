"""The data set that needs no download."""

import numpy as np
from sklearn.datasets import load_digits

from comity.data._dataset import Dataset


def read_digits() -> Dataset:
    """1,797 handwritten digits, 8×8 grey (Alpaydin and Kaynak, UCI 1998), from scikit-learn."""
    x, y = load_digits(return_X_y=True)
    pixels = np.round(x * (255 / 16)).astype(np.uint8)
    return Dataset("digits", pixels.reshape(-1, 8, 8), y, classes=10)
