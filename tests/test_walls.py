"""The import contract of docs/explanation/architecture.md: which room may know which, and what stays private to one."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import comity

SOURCE = Path(comity.__file__).parent
GROUND = (
    *("_errors", "_words", "_write", "_memory", "_random", "_layout", "_threads", "_uneven"),
    *(
        "_labels",
        "_hints",
        "_options",
        "_natural",
        "_federation_columns",
        "_federations",
        "_datasets",
        "_source",
        "_catalogue",
        "_components",
        "_overlay",
        "_yaml",
        "_sections",
    ),
    *("_extensions", "config", "metrics"),
)
"""The ground floor, lowest first: each may know those before it, and every room may know all of them."""
ROOMS = {
    "rules": (),
    "nn": (),
    "data": (),
    "results": (),
    "compare": ("results",),
    "methods": ("rules", "nn", "data", "results"),
    "engine": ("methods", "rules", "nn", "data", "results", "compare"),
    "guard": ("data", "engine", "methods", "nn"),
    "privacy": ("engine", "methods", "rules", "results"),
    "extras": ("engine", "methods", "rules", "data", "results"),
    "probe": ("data", "engine", "methods", "results", "compare"),
    "studies": ("engine", "results", "compare"),
    "report": ("results", "compare"),
    "files": ("rules",),
    "deploy": ("engine", "methods", "nn", "data", "results", "compare", "guard"),
    "nvflare": ("rules",),
    "flower": ("engine", "methods", "rules", "nn", "data", "results", "privacy", "deploy", "probe"),
}
"""What each room may know beside the ground floor. ``commands`` and ``__main__`` stand on top and may know all."""
NO_TORCH = ("", ".config", ".results", ".compare", ".report", ".commands", ".__main__")


def imports(file: Path) -> Iterator[tuple[list[str], str, bool]]:
    """Every import of comity in a file: the module's path below comity, the name taken, whether it is at run time."""
    tree = ast.parse(file.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "comity":
            for alias in node.names:
                yield node.module.split(".")[1:], alias.name, id(node) not in for_types
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "comity":
                    yield alias.name.split(".")[1:], "", id(node) not in for_types


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_room_knows_only_the_rooms_below_it(file: Path) -> None:
    here = file.relative_to(SOURCE).with_suffix("").parts[0]
    for path, name, at_run_time in imports(file):
        there = path[0] if path else name
        if not at_run_time or there == here or here in ("commands", "__main__", "__init__"):
            continue
        if there == "__version__":
            continue
        if here in GROUND:
            assert there in GROUND[: GROUND.index(here)], f"{file}: the ground floor's {here} imports {there}"
        else:
            assert here in ROOMS, f"{here} is in no room of the contract"
            assert there in GROUND or there in ROOMS[here], f"{file}: {here} imports {there}"


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_what_is_private_to_a_room_stays_there(file: Path) -> None:
    here = file.relative_to(SOURCE).with_suffix("").parts[0]
    for path, name, _ in imports(file):
        if path and path[0] in ROOMS and path[0] != here:
            private = [part for part in (*path, name) if part.startswith("_") and not part.startswith("__")]
            assert not private, f"{file} imports {'.'.join(path)}.{name}"
            assert len(path) == 1, f"{file} imports {'.'.join(path)}, not {path[0]} itself"


@pytest.mark.parametrize("module", [f"comity{name}" for name in NO_TORCH])
def test_what_only_reads_and_explains_does_not_wait_for_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("word", ["guard", "masked", "attack", "sketch", "clip_updates", "max_share"])
def test_the_engine_knows_no_extension(word: str) -> None:
    assert not [file.name for file in (SOURCE / "engine").glob("*.py") if word in file.read_text().lower()]


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_nobody_assigns_into_the_engine_from_outside(file: Path) -> None:
    """A method sets the server's ``theta`` and ``store``, which are its own state; nothing else is set by others."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) else ():
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Attribute) and ast.unparse(each.value).split(".")[-1] in ("site", "server"):
                    found.append(ast.unparse(each))
    own = {"methods": ("server.theta", "server.store")}.get(file.parent.name, ())
    assert not [each for each in found if each not in own and each.partition(".")[0] != file.stem.removeprefix("_")]
