"""Clients' checkpoints as files: diagnose the conflict between them, and merge them, whatever framework made them.

>>> from comity.files import aggregate
>>> aggregate("base.safetensors", ["a.safetensors", "b.safetensors"], "new.safetensors")  # doctest: +SKIP
"""

from comity.files._inspect import Inspection, Verdict, inspect
from comity.files._merge import Merge, aggregate
from comity.files._show import LAYERS, percent, several, show
from comity.files._updates import Progress

__all__ = [
    "LAYERS",
    "Inspection",
    "Merge",
    "Progress",
    "Verdict",
    "aggregate",
    "inspect",
    "percent",
    "several",
    "show",
]
