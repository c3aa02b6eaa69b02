"""Whether wheel and sdist hold every file of the package: ``python .ci/check_dist.py WHEEL SDIST``."""

import sys
import tarfile
import zipfile
from pathlib import Path, PurePath

SOURCE = Path(__file__).parents[1] / "src"


def missing(names: set[str]) -> list[str]:
    files = (file.relative_to(SOURCE) for file in SOURCE.rglob("*") if file.is_file())
    wanted = {file.as_posix() for file in files if "__pycache__" not in file.parts}
    return sorted(wanted - names)


if __name__ == "__main__":
    wheel, sdist = sys.argv[1:]
    with zipfile.ZipFile(wheel) as opened:
        found = {wheel: set(opened.namelist())}
    with tarfile.open(sdist) as tar:
        found[sdist] = {"/".join(PurePath(name).parts[2:]) for name in tar.getnames()}  # comity-0.1.0/src/...
    for archive, names in found.items():
        if left_out := missing(names):
            sys.exit(f"{archive} lacks {', '.join(left_out)}")
        print(f"{archive}: whole")
