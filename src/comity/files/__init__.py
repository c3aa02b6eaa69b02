"""Clients' checkpoints as files: see the conflict in them, and merge them without harm, whatever made them.

>>> from comity.files import aggregate
>>> aggregate("base.safetensors", ["a.safetensors", "b.safetensors"], "new.safetensors")  # doctest: +SKIP
"""

from comity.files._html import page
from comity.files._inspect import Inspection, Verdict, inspect
from comity.files._merge import Merge, aggregate
from comity.files._show import LAYERS, show
from comity.files._updates import Progress
from comity.files._words import percent, several

# fmt: off
__all__ = [
    # what to do with files
    "inspect", "Inspection", "Verdict", "aggregate", "Merge", "Progress",
    # how it is shown
    "show", "page", "percent", "several", "LAYERS",
]
# fmt: on
