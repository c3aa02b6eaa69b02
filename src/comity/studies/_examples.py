"""The studies that come with comity: the papers' own experiments, at the scale of a desk, a night or the paper."""

from importlib.resources import files
from pathlib import Path

from comity._errors import unknown
from comity.config import read_yaml


def examples() -> dict[str, Path]:
    """By name, from ``comity/examples``."""
    folder = Path(str(files("comity"))) / "examples"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def find_example(name: str) -> Path:
    known = examples()
    if name not in known:
        raise unknown("example", name, known)
    return known[name]


def about(file: Path) -> str:
    return " ".join(str(read_yaml(file).get("about", "")).split())
