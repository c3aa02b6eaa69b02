"""Where a site's samples come from: its own table, read by the common schema beside this file."""

from pathlib import Path

from comity.flower import Tables

own = Tables(Path(__file__).with_name("schema.yaml"))
