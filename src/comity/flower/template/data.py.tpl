"""How a site loads its own data.

As written, every node takes its share of the configured data set ($data), so that you can try the app: the result
equals that of `comity run`. To use your own data, write `load` and remove the last line.
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
        val=empty,  # FEDORA and a few other methods need validation samples
        test=Split(kept["test_x"], kept["test_y"]),
    )


own: OwnData | None = OwnData(shape=(1, 28, 28), classes=10, load=load)
own = None  # remove this line
