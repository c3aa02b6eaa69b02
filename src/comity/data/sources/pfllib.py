"""PFLlib's layout: <Name>/config.json and <Name>/{train,test}/<client>.npz."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset
from comity.data.sources.npz import open_archive, read_member
from comity.data.sources.reading import Budget, array_bytes, pool, reading
from comity.data.sources.unpickle import arrays_of, unpickle_object

LARGEST_CONFIG = 1 << 20

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class Config(msgspec.Struct):
    """The fields of config.json that are read."""

    num_clients: AtLeastOne
    num_classes: AtLeastOne


def read_pfllib(name: str, folder: Path, budget: Budget) -> Dataset | None:
    """Data and exact partition of a paper that PFLlib ships (Zhang et al., JMLR 2025).

    Images are floats, channels first, and already normalised.
    """
    if not ((folder / "config.json").is_file() and (folder / "train" / "0.npz").is_file()):
        return None
    with reading(folder / "config.json"), (folder / "config.json").open("rb") as file:
        config = msgspec.json.decode(file.read(LARGEST_CONFIG), type=Config)
    clients = config.num_clients
    if (folder / "train" / f"{clients}.npz").exists():
        raise ComityError(f"{folder}: config.json says {clients} clients; there are more in train")
    x, y, owner, test = [], [], [], []
    for split in ("train", "test"):
        for client in range(clients):
            images, labels = _client(folder / split / f"{client}.npz", budget)
            x.append(images)
            y.append(labels)
            owner.append(np.full(len(labels), client))
            test.append(np.full(len(labels), split == "test"))
    columns = {"client": np.concatenate(owner), "test": np.concatenate(test)}
    images, labels = pool(x, folder, "the clients' images"), pool(y, folder, "the clients' labels")
    return Dataset(name, images, labels, config.num_classes, columns)


def _client(path: Path, budget: Budget) -> tuple[NDArray[Any], NDArray[Any]]:
    with reading(path), open_archive(path) as archive:
        member = read_member(archive, archive.getinfo("data.npy"), path)
        if not member.dtype.hasobject:
            raise ComityError(f"{path}: holds an array of {member.dtype.str}; expected one Python object")
        budget.check(4 * member.info.file_size, path)  # as read, as bytes, in the unpickler, as arrays
        with archive.open(member.info) as file:
            content = file.read(member.info.file_size)[member.start :]
        x, y = arrays_of(unpickle_object(content, path), path, "x", "y")
        if x.ndim not in (3, 4) or y.shape != (len(x),):
            raise ComityError(
                f"{path}: got x of shape {x.shape}, y of shape {y.shape}; expected images (n, C, H, W) and a label each"
            )
        if x.dtype.kind in "iu" and x.dtype != np.uint8:
            raise ComityError(f"{path}: got x of type {x.dtype}; expected images as floats")
        budget.take(array_bytes(x.shape, x.dtype), path)
    return (x.transpose(0, 2, 3, 1) if x.ndim == 4 else x[..., None]), y
