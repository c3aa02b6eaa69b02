"""The data sets known by name, and where their files are.

Needs no torch, so that a misspelt or missing data set is reported at once.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from comity._errors import ComityError, install, unknown
from comity._federations import NATURAL
from comity._labels import spelling
from comity._natural import NaturalOptions
from comity._options import Range

TABLES = (
    ".csv",
    ".tsv",
    ".parquet",
    ".xlsx",
    ".zip",
    *(f".{a}.{b}" for a in ("csv", "tsv") for b in ("gz", "bz2", "xz")),
)
HUB = "hub:"
SITES = "sites"
"""Name of tables that stay at their sites, in a configuration."""


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """A data set read from a file, a folder or the hub.

    Options:
        size: resize images to this many pixels per side
        target: column to predict in a table; by default one named target, label, outcome, …
        client: column with the client of each row; by default one named client, hospital, site, …
        text: a text column; its words and letter trigrams are hashed to 1,024 features
        missing: missing values become the mean of the training samples; `marked` also adds a feature that marks them
        schema: a schema file (from `comity schema`) that describes how to read the table
        sheet: sheet of an .xlsx file; by default the first
        centred: scale pixels to [-1, 1]; if false, to [0, 1]
    """

    size: Annotated[int, Range(least=1, most=4096)] | None = None
    target: str | None = None
    client: str | None = None
    text: str | None = None
    missing: Literal["mean", "marked"] = "mean"
    schema: str | None = None
    sheet: str | None = None
    centred: bool = True


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a named data set before its files are read."""

    about: str
    hub: str = ""
    """Name on the hub."""
    folders: tuple[str, ...] = ()
    """Other names of its folder."""
    size: int | None = None
    """Usual size in pixels."""
    get: str = ""
    """What to download, and where."""
    reader: str = ""
    """Class or function in ``comity.data.sources`` with the options, if the data are not read from files."""
    shipped: str = ""
    """A file of an installed package; the extra that installs it has the data set's name."""
    images: bool = True
    """Whether the data are known to be images without client information."""
    options: type = DataFiles
    """Dataclass with the options, if the data are read from files."""


UNKNOWN = DatasetInfo("a data set in a file or folder, or on the hub")

DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(
        "1,797 handwritten digits, 8×8 grey, 10 classes; included (UCI)", reader="embedded.read_digits"
    ),
    "heart": DatasetInfo(
        "920 patients of four hospitals, 13 columns; target: heart disease; client: hospital; included (UCI)",
        reader="embedded.read_heart",
        images=False,
    ),
    "watch": DatasetInfo(
        "2,368 windows of smartwatch data, 6 axes × 50 time steps; target: 7 exercises; client: one of 20 arms "
        "(Burns et al., 2018)",
        shipped="seglearn/data/watch_dataset.npy",
        images=False,
    ),
    "synthetic": DatasetInfo(
        "generated images; label, feature and concept shift can each be set",
        reader="synthetic.Synthetic",
    ),
    "mnist": DatasetInfo("70,000 handwritten digits, 28×28 grey, 10 classes (LeCun et al., 1998)", "ylecun/mnist"),
    "fashion-mnist": DatasetInfo(
        "70,000 articles of clothing, 28×28 grey, 10 classes (Xiao et al., 2017)",
        "zalando-datasets/fashion_mnist",
        ("fmnist",),
    ),
    "cifar10": DatasetInfo(
        "60,000 photographs, 32×32 RGB, 10 classes (Krizhevsky, 2009)",
        "uoft-cs/cifar10",
        ("cifar-10-batches-py",),
        get="the python version from https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "cifar100": DatasetInfo(
        "60,000 photographs, 32×32 RGB, 100 classes (Krizhevsky, 2009)",
        "uoft-cs/cifar100",
        ("cifar-100-python",),
        get="the python version from https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "cinic10": DatasetInfo("270,000 photographs, 32×32 RGB, 10 classes (Darlow et al., 2018)", "flwrlabs/cinic10"),
    "tiny-imagenet": DatasetInfo(
        "110,000 photographs, 64×64 RGB, 200 classes (Le and Yang, 2015)",
        "zh-plus/tiny-imagenet",
        ("tiny-imagenet-200",),
        64,
    ),
    "flowers102": DatasetInfo(
        "8,189 flowers, RGB, 102 classes (Nilsback and Zisserman, 2008)", "nelorth/oxford-flowers", ("flowers-102",), 64
    ),
    "gtsrb": DatasetInfo("51,839 traffic signs, RGB, 43 classes (Stallkamp et al., 2012)", "tanganke/gtsrb", size=32),
    "yearbook": DatasetInfo(
        "37,921 portraits of 1905-2013, grey, 2 classes, with the year (Ginosar et al., 2015)",
        size=32,
        get="the folders F and M from https://people.eecs.berkeley.edu/~shiry/projects/yearbooks/yearbooks.html",
    ),
} | {
    name: DatasetInfo(
        each.about + "; included" * each.embedded,
        images=False,
        options=NaturalOptions,
    )
    for name, each in NATURAL.items()
}


def whereabouts(name: str, data_dir: str | Path | None = None) -> Path | None:
    """The file or folder of a data set; ``None`` if none is needed. A missing data set raises an error."""
    if name == SITES:
        raise ComityError(f"data {name}: each site reads its own table, on Flower; here give a file with all rows")
    if name in NATURAL:
        return NATURAL[name].found(data_dir)
    info = DATASETS.get(name, UNKNOWN)
    folder = Path(data_dir or os.environ.get("COMITY_DATA") or ".")
    if name.startswith(HUB) and not hub_installed():
        raise ComityError(f"data {name}: the hub needs the package datasets: {install('hub')}")
    if name.startswith(HUB) or info.reader:
        return None
    try:
        path = _find(name, info.folders, folder) or _shipped(info.shipped)
    except OSError as error:  # a name that is too long, a folder without read permission
        raise ComityError(f"data {name}: {error.strerror}") from error
    if path is None and not (info.hub and hub_installed()):
        raise _missing(name, info, folder)
    return path


def hub_installed() -> bool:
    return find_spec("datasets") is not None


def _shipped(file: str) -> Path | None:
    """A file in an installed package, without importing the package."""
    package, _, name = file.partition("/")
    spec = find_spec(package) if package else None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / name


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name or name.lower().endswith((".npz", *TABLES))


def _find(name: str, aliases: tuple[str, ...], folder: Path) -> Path | None:
    """A path as given, otherwise the entry of ``folder`` with that name (any case, '-' or '_'): npz, folder, table."""
    if _is_path(name):
        return next((path for path in (Path(name).expanduser(), folder / name) if path.exists()), None)
    if not folder.is_dir():
        return None
    wanted = {spelling(alias) for alias in (name, *aliases)}
    entries = sorted(folder.iterdir())
    archives = [path for path in entries if path.name.endswith(".npz") and path.is_file()]
    folders = [path for path in entries if path.is_dir()]
    tables = [path for path in entries if path.name.lower().endswith(TABLES) and name not in DATASETS]
    return next((path for path in (*archives, *folders, *tables) if spelling(bare_name(path)) in wanted), None)


def bare_name(path: Path) -> str:
    """The name of a file without its extension; a folder's name unchanged."""
    if path.is_dir():
        return path.name
    return next((path.name[: -len(end)] for end in TABLES if path.name.lower().endswith(end)), path.stem)


def _missing(name: str, info: DatasetInfo, folder: Path) -> ComityError:
    if _is_path(name):
        return ComityError(f"data {name}: no such file or folder")
    if info is UNKNOWN and Path(name).is_file():
        return ComityError(f"data {name}: a file of this type cannot be read; known: .npz, {', '.join(TABLES)}")
    table = f", and tables such as {name}.csv," if info is UNKNOWN else ""
    looked = f"looked for {name}.npz and the folder {name}/{table} in {folder.resolve()}"
    if info is UNKNOWN:
        return unknown("data set", name, DATASETS, hint=f"({looked})")
    ways = [f"put {info.get} there"] if info.get else []
    ways += [f"run {install(name)}, which installs the recordings"] if info.shipped else []
    ways += [f"run {install('hub')}, then comity fetches {info.hub} from the Hugging Face hub"] if info.hub else []
    return ComityError(f"data {name}: {looked} (set by --data-dir or COMITY_DATA); to get it: {', or '.join(ways)}")
