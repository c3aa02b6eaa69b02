"""The data sets that are known by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from comity._catalogue import DataFiles
from comity.data.sources.digits import read_digits
from comity.data.sources.heart import read_heart
from comity.data.sources.synthetic import Synthetic


@dataclass(frozen=True)
class DatasetInfo:
    """A data set of the papers: what it is, its name on the hub, its folder's other names, its customary size."""

    about: str
    hub: str | None = None
    folders: tuple[str, ...] = ()
    size: int | None = None
    get: str = ""
    """What to download, and where."""
    options: Callable[..., Any] = DataFiles
    """The class or function whose arguments are the options of this data set."""
    images: bool = True
    """Whether it is known without reading it that these are images, which nobody owns."""

    def __str__(self) -> str:
        return self.about


DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo("1,797 handwritten digits, 8×8 grey, 10 classes; embedded (UCI)", options=read_digits),
    "heart": DatasetInfo(
        "920 patients of four hospitals, 13 columns, ill or not; embedded, each hospital a client (UCI)",
        options=read_heart,
        images=False,
    ),
    "watch": DatasetInfo(
        "2,368 windows of a smartwatch on 20 arms, 6 axes × 50, 7 exercises, each arm a client (Burns et al., 2018)",
        get="watch.npz, made of the recordings in https://github.com/dmbee/seglearn",
        images=False,
    ),
    "synthetic": DatasetInfo(
        "class-conditional images made on the spot; label, feature and concept shift each set by a number",
        options=Synthetic,
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
        "8,189 flowers, RGB, 102 classes (Nilsback and Zisserman, 2008)", "nelorth/oxford-flowers", ("flowers-102",), 32
    ),
    "gtsrb": DatasetInfo("51,839 traffic signs, RGB, 43 classes (Stallkamp et al., 2012)", "tanganke/gtsrb", size=32),
    "yearbook": DatasetInfo(
        "37,921 portraits of 1905-2013, grey, 2 classes, with the year (Ginosar et al., 2015)",
        size=32,
        get="the folders F and M from https://people.eecs.berkeley.edu/~shiry/projects/yearbooks/yearbooks.html",
    ),
}
