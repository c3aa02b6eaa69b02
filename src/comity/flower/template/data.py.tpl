"""How a site loads its own data.

As written, every node takes its part of the configuration's federation ($data), which is for trying things out: the
result is that of `comity run`. To use your own data, write `load` and remove the last line.
"""

import torch
from flwr.app import Context

from comity.data import ClientData, Split
from comity.flower import OwnData


def load(context: Context) -> ClientData:
    """This site's samples: x float32 (n, channels, height, width), y int64 (n,)."""
    kept = torch.load(str(context.node_config["data"]))  # flower-supernode --node-config "data='/srv/mine.pt' ..."
    empty = Split(kept["x"][:0], kept["y"][:0])
    return ClientData(
        id=int(context.node_config["partition-id"]),
        train=Split(kept["x"], kept["y"]),
        val=empty,  # FEDORA and a few others need some
        test=Split(kept["test_x"], kept["test_y"]),
    )


own: OwnData | None = OwnData(shape=(1, 28, 28), classes=10, load=load)
own = None  # remove this line
