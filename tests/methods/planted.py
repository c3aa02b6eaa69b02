"""A federation whose clusters are known."""

from dataclasses import replace
from typing import Any

import torch

from comity import Config
from comity.data import ClientData, Federation, Split
from helpers import federation_of

GROUPS = 2


def group(cid: int) -> int:
    return cid % GROUPS


def planted(options: dict[str, Any]) -> tuple[Config, Federation]:
    """Two groups of clients with the same images, in which the labels of the second are one further."""
    data = options["data"] | {"samples": 60, "label_shift": 0.0, "feature_shift": 0.0}
    config = Config(**(options | {"data": data, "clients": 8}))
    federation = federation_of(config)

    def relabelled(split: Split, cid: int) -> Split:
        return Split(split.x, torch.remainder(split.y + group(cid), federation.classes))

    clients = tuple(
        ClientData(c.id, *(relabelled(split, c.id) for split in (c.train, c.val, c.test))) for c in federation.clients
    )
    return config, replace(federation, clients=clients)
