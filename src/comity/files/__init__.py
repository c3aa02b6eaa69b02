"""Clients' checkpoints as files of any framework: diagnose the conflict between them, and merge them.

>>> from comity.files import aggregate
>>> aggregate("base.safetensors", ["a.safetensors", "b.safetensors"], "new.safetensors")  # doctest: +SKIP
"""

from comity.files._inspect import Inspection, inspect
from comity.files._merge import Merge, aggregate

__all__ = ["Inspection", "Merge", "aggregate", "inspect"]
