"""Read a site's samples from its own table, by the common schema next to this file."""

from pathlib import Path

from comity.flower import Tables

own = Tables(Path(__file__).with_name("schema.yaml"))
