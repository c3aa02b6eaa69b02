"""Generated files for ``comity run`` and ``comity study``: a configuration or one clear line, and no code is run."""

import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from comity._catalogue import KINDS, described
from comity._errors import ComityError
from comity._options import options
from comity.config import Config, code_in, read_yaml
from comity.studies._grid import MOST_CELLS, SCALES, at_scale, callback_names, expand, section
from comity.studies._tune import groups
from fuzz.harness import attempt, damaged, fuzz

FILE = Path(tempfile.mkdtemp()) / "c.yaml"
NAMES = {
    kind: [*described(kind), "os.system", "pathlib.Path", "nowhere.Mine", "", "x" * 3000, ".", "a,b"] for kind in KINDS
}
ODD: list[Any] = [
    *(None, True, 0, -1, 1, 2.5, 10**18, 10**400, -(10**30), 1e308, float("nan"), float("inf"), "", "x", "none"),
    *("1e999", "0.1:0.9", "0:1:1e-12", "nan:1", [], {}, [[]], {"name": None}, {"name": "Ditto", "lam": []}, b"x"),
    *("\x1b[31m", "\u2028", "é" * 900, [None] * 50, {"a": {"b": {"c": 1}}}, "2024-01-01", "../../x", "~", "%s{}"),
]
ANY = st.sampled_from(ODD)
RUN_OPTIONS = [name for name in options(Config) if name not in KINDS]


@st.composite
def components(draw: st.DrawFn, kind: str) -> Any:
    name = draw(st.sampled_from(NAMES[kind]))
    known = list(described(kind)[name].options) if name in described(kind) else []
    chosen = draw(st.lists(st.sampled_from([*known, "zzz", "name"]), max_size=3))
    entry = {"name": name} | {key: draw(ANY | st.floats() | st.integers()) for key in chosen}
    return draw(st.sampled_from([name, entry, [name, entry], f"{name},{name}"]))


@st.composite
def entries(draw: st.DrawFn, depth: int = 0) -> dict[str, Any]:
    """A few options of a run or a study, right or wrong."""
    made: dict[str, Any] = {}
    for _ in range(draw(st.integers(0, 4))):
        what = draw(st.sampled_from(["option", "component", "component", "dotted", "study", "odd"]))
        if what == "option":
            made[draw(st.sampled_from(RUN_OPTIONS))] = draw(ANY | st.integers(-3, 5) | st.floats())
        elif what == "component":
            kind = draw(st.sampled_from(sorted(KINDS)))
            made[kind] = draw(components(kind) | ANY)
        elif what == "dotted":
            made[
                draw(st.sampled_from(["rule.c", "method.lam", "rule.name", "seed.x", "rule.", ".", "partition.alpha"]))
            ] = draw(ANY)
        elif what == "odd":
            made[draw(st.text(max_size=8))] = draw(ANY)
        else:
            made |= draw(of_a_study(depth))
    return made


@st.composite
def of_a_study(draw: st.DrawFn, depth: int) -> dict[str, Any]:
    key = draw(
        st.sampled_from(["seeds", "sweep", "grid", "tune", "budget", "jobs", "most_cells", "callbacks", *SCALES])
    )
    if depth < 2 and key in SCALES:
        return {key: draw(entries(depth + 1) | ANY)}
    if depth < 2 and key == "grid":
        return {key: draw(st.lists(entries(depth + 1), max_size=2) | ANY)}
    if key in ("sweep", "tune"):
        keys = st.sampled_from(["rule.c", "lr", "model", "rule", "seed", "out", "method.lam", "clients", "rule.name"])
        return {key: draw(st.dictionaries(keys, st.lists(ANY, max_size=4) | ANY, max_size=3) | ANY)}
    return {key: draw(ANY | st.integers(-3, 40))}


def configured(text: bytes, allow_code: bool = False) -> Any:
    """What ``comity run`` and ``comity study`` make of a file before anything is built or written."""
    FILE.write_bytes(text)

    def of_study() -> Any:
        lines = at_scale(read_yaml(FILE, allow_code=allow_code), None) | {"most_cells": 50, "out": None}
        cells = expand(lines)
        callback_names(lines)
        return groups(cells, section(lines, "tune"), None)

    config = attempt(lambda: Config.load(FILE, allow_code=allow_code))
    assert isinstance(config, ComityError) or config == Config.of(config.plain())
    cells = attempt(of_study)
    assert isinstance(cells, ComityError) or len(cells) <= MOST_CELLS
    return config


@fuzz("files of options", entries())
def test_files_of_options(made: dict[str, Any]) -> None:
    config = configured(yaml.safe_dump(made, allow_unicode=True).encode("utf-8", "surrogatepass"))
    assert isinstance(config, ComityError) or not code_in(made)
    configured(yaml.safe_dump(made).encode(), allow_code=True)


VALID = b"""\
method: {name: Ditto, lam: 2.0}
rule: [Mean, {name: ConFREE, c: 0.1, scope: layer}]
model: &m mlp
partition.alpha: 3
rounds: 7
lr: 0.3
seeds: 2
sweep: {partition.alpha: [0.1, 1], model: [*m, cnn]}
tune: {rule.c: 0.1:0.9}
desk: {rounds: 2}
"""
TOKENS = [
    *(b"&m ", b"*m", b"!!python/name:os.system ", b"!!set ", b"<<: *m\n", b"? ", b"{", b"["),
    *(b"\t", b"|\n", b"---\n", b"%YAML 9\n", b"0x", b": ", b"2024-1-1 "),
]


@fuzz("damaged files of options", damaged(VALID))
def test_damaged_files(content: bytes) -> None:
    configured(content)


@fuzz(
    "damaged files of options",
    st.lists(st.tuples(st.sampled_from(TOKENS), st.integers(0, len(VALID))), min_size=1, max_size=6),
)
def test_files_with_other_tokens(inserted: list[tuple[bytes, int]]) -> None:
    content = VALID
    for token, at in inserted:
        content = content[:at] + token + content[at:]
    configured(content)
