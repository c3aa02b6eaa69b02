"""Merge the schemas of several sites into one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from comity._words import listed
from comity.data.schema import Column, Schema
from comity.data.sources.infer import client_names, similar_names

Key = TypeVar("Key")


class Disagreement(NamedTuple):
    """A difference between the schemas of sites."""

    column: str
    words: str
    level: Literal["note", "column", "table"]
    """"column" and "table" must be resolved by the sites: the column, or the whole table, cannot be merged."""


def merge_schemas(sites: Mapping[str, Schema]) -> tuple[Schema, list[Disagreement]]:
    """Merge schemas into their union and list all disagreements. Columns without agreement are left out.

    Categories, classes and clients are the union over sites; a range is the widest one. A column that is blank or
    constant at one site takes its description from the others.
    """
    schemas = list(sites.values())
    found: list[Disagreement] = []
    targets = _by_value({site: schema.target for site, schema in sites.items()})
    by_column = _by_value({site: schema.client for site, schema in sites.items() if schema.client is not None})
    target, client = next(iter(targets)), next(iter(by_column), None)
    if len(targets) > 1:
        found.append(Disagreement("target", f"differs: {_sites_by_value(targets)}", "table"))
    if len(by_column) > 1:
        found.append(Disagreement("client", f"is another column: {_sites_by_value(by_column)}", "table"))
    elif by_column and (without := [site for site, schema in sites.items() if schema.client is None]):
        found.append(Disagreement("client", f"has no column at {listed(without)}", "note"))
    for name, held in _by_value({(site, name): name for site in sites for name in sites[site].clients}).items():
        if len(held) > 1:
            found.append(Disagreement("client", f"{name} is the name at {listed(site for site, _ in held)}", "table"))
    columns: dict[str, Column] = {}
    ignored = {name: why for schema in schemas for name, why in schema.ignored.items()}
    names = dict.fromkeys(name for schema in schemas for name in schema.columns)
    for name in names:
        if name in (*targets, *by_column):
            continue
        merged, words = _merged(name, sites)
        found += words
        ignored.pop(name, None)
        if merged is None:
            ignored[name] = "the sites disagree about it"
        else:
            columns[name] = merged
    classes, clients = (_sorted(each for schema in schemas for each in getattr(schema, what)) for what in _NAMES)
    for what, values in (("columns", names), ("target", classes), ("client", clients)):
        found += [Disagreement(what, f"{pair} are probably the same", "note") for pair in similar_names(values)]
    ids = {schema.id for schema in schemas}
    id, least = ids.pop() if len(ids) == 1 else None, max(schema.min_count for schema in schemas)
    return Schema(target, classes, columns, client, clients, id, ignored, least), found


_NAMES = ("classes", "clients")


def _merged(name: str, sites: Mapping[str, Schema]) -> tuple[Column | None, list[Disagreement]]:
    """The merged column, or None if it cannot be merged, and its disagreements."""
    there = {site: schema.columns[name] for site, schema in sites.items() if name in schema.columns}
    known = {site: column for site, column in there.items() if column.kind != "blank"}
    found: list[Disagreement] = []

    def disagree(words: str, level: Literal["note", "column"] = "column") -> None:
        found.append(Disagreement(name, words, level))

    if lacking := [site for site, schema in sites.items() if name not in schema.columns and name not in schema.ignored]:
        disagree(f"is missing at {listed(lacking)}; add it there, blank if need be")
    for site, schema in sites.items():
        if name in schema.ignored and name not in schema.columns:
            disagree(f"is left out at {site}: {schema.ignored[name]}")
    if not known:
        return (None if found else next(iter(there.values()))), found
    if len(kinds := _by_value({site: column.kind for site, column in known.items()})) > 1:
        disagree(f"is of different kinds: {_sites_by_value(kinds)}")
        return None, found
    if len(units := _by_value({site: column.unit for site, column in known.items() if column.unit})) > 1:
        disagree(f"has different units: {_sites_by_value(units)}")
    elif units and len(without := [site for site, column in known.items() if not column.unit]):
        disagree(f"has the unit {next(iter(units))}, and none at {listed(without)}", "note")
    if len(widths := _by_value({site: str(column.width) for site, column in known.items()})) > 1:
        disagree(f"has different numbers of features: {_sites_by_value(widths)}")
    orders = {site: column.day_first for site, column in known.items() if column.day_first is not None}
    if len(set(orders.values())) > 1:
        words = {site: "day first" if first else "month first" for site, first in orders.items()}
        disagree(f"has dates in different orders: {_sites_by_value(_by_value(words))}")
    kind = next(iter(kinds))
    lists = [column.categories for column in known.values()]
    categories: Sequence[str] | None = tuple(sorted({value for values in lists for value in values}))
    if kind == "ordered" and (categories := _in_order(lists)) is None:
        disagree("has its categories in different orders: " + "; ".join(" < ".join(values) for values in lists))
    for value, held in _by_value({(site, each): each for site in known for each in known[site].categories}).items():
        if len(held) < len(known):
            disagree(f"has the category {value} only at {listed(site for site, _ in held)}", "note")
    ranges = {site: f"{column.low:g} to {column.high:g}" for site, column in known.items() if column.low is not None}
    if len(by_range := _by_value(ranges)) > 1:
        disagree(f"has different ranges: {_sites_by_value(by_range)}; the widest is taken", "note")
    for pair in similar_names(categories or ()):
        disagree(f"holds {pair}, which are probably the same", "note")
    if any(each.level == "column" for each in found):
        return None, found
    columns = list(known.values())
    lows, highs = ([getattr(column, limit) for column in columns] for limit in ("low", "high"))
    same = all(column.constant for column in columns) and (len(columns) == 1 or len(categories or ()) == 1)
    merged = replace(
        columns[0],
        categories=tuple(categories or ()),
        other=any(column.other for column in columns),
        marked=any(column.marked for column in there.values()),
        unit=next(iter(units), ""),
        low=None if None in lows else min(lows),
        high=None if None in highs else max(highs),
        day_first=next(iter(orders.values()), None),
        constant=same,
    )
    return merged, found


def _in_order(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The list that contains all others in the same order, or None if there is none."""
    longest = max(lists, key=len)
    return longest if all(values == tuple(each for each in longest if each in values) for values in lists) else None


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    """Unique names, in the order of a table of all sites."""
    different = list(dict.fromkeys(names))
    return tuple(map(str, np.unique(client_names(different)))) if different else ()


def _by_value(values: Mapping[Key, str]) -> dict[str, list[Key]]:
    held: dict[str, list[Key]] = {}
    for key, value in values.items():
        held.setdefault(value, []).append(key)
    return held


def _sites_by_value(held: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{value} ({listed(sites)})" for value, sites in held.items())
