"""Clients' checkpoints as files: see the conflict in them, and merge them without harm, whatever made them.

>>> from comity.files import aggregate
>>> aggregate("base.safetensors", ["a.safetensors", "b.safetensors"], "new.safetensors")  # doctest: +SKIP
"""

from comity.files._inspect import Inspection, Verdict, inspect
from comity.files._merge import Merge, aggregate

__all__ = ["Inspection", "Merge", "Verdict", "aggregate", "inspect"]
