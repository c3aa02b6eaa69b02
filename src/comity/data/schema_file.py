"""Schema files: YAML that one site writes and others read."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from comity._errors import ComityError
from comity._yaml import read_mapping
from comity.data.schema import FORMAT, Column, Schema

Made = TypeVar("Made")

HEAD = """\
# The schema of a table: what its columns hold. It has no rows. `comity schema --help` says more.
# To be filled in by hand: units; the order of grades (kind: ordered, categories from low to high); wider ranges.
"""


def schema_text(schema: Schema) -> str:
    """The schema as file content: readable, in a fixed order, and read back as the same schema."""
    plain = msgspec.to_builtins(schema)
    plain["columns"] = {
        name: {"kind": column.kind}
        | ({"unit": column.unit} if column.kind == "number" else {})
        | plain["columns"][name]
        for name, column in schema.columns.items()
    }
    return HEAD + yaml.safe_dump({"format": FORMAT} | plain, sort_keys=False, allow_unicode=True, width=120)


def read_schema(path: Path) -> Schema:
    """Read a schema file, possibly from another site."""
    entries = read_mapping(path, "schema")
    version = entries.get("format", FORMAT)
    if not isinstance(version, int) or not 1 <= version <= FORMAT:
        raise ComityError(f"schema {path} has format {version}; this comity reads format {FORMAT}: update comity")
    columns = entries.get("columns")
    for name, column in columns.items() if isinstance(columns, dict) else ():
        _converted(column, Column, f"schema {path}, column {name}")
    return _converted(entries, Schema, f"schema {path}")


def _converted(value: Any, to: type[Made], where: str) -> Made:
    try:
        return msgspec.convert(value, to)
    except msgspec.ValidationError as error:
        hint = "; put text in quotes" if "Expected `str`" in str(error) else ""
        raise ComityError(f"{where}: {error}{hint}") from error
