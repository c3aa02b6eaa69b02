"""Clients' checkpoints as files: diagnose the conflict between them, and merge them, whatever framework made them.

>>> from comity.files import aggregate
>>> aggregate("base.safetensors", ["a.safetensors", "b.safetensors"], "new.safetensors")  # doctest: +SKIP
"""

from comity.files._inspect import Inspection, inspect
from comity.files._merge import Merge, aggregate

__all__ = ["Inspection", "Merge", "aggregate", "inspect"]
