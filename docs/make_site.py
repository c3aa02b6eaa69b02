"""What the site has beside the pages in this folder: a hook of mkdocs.yml.

The pages of commands and options are made from the commands and from the components; links out of this folder lead to
the repository.
"""

import os
import posixpath
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
os.environ["COLUMNS"] = "100"  # of a help page
sys.path.insert(0, str(ROOT / "src"))  # what stands here needs no torch

from comity._catalogue import KINDS, described  # noqa: E402
from comity._options import REQUIRED  # noqa: E402
from comity.commands import overview  # noqa: E402


def on_config(config: MkDocsConfig) -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    config.site_url, config.repo_url, config.repo_name = urls["Documentation"], urls["Source"], "source"


def on_files(files: Files, config: MkDocsConfig) -> None:
    for name, lines in {"reference/commands.md": commands(), "reference/options.md": options()}.items():
        files.append(File.generated(config, name, content="\n".join(lines)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    here = posixpath.dirname(page.file.src_uri)

    def linked(found: re.Match[str]) -> str:
        """A link out of this folder leads to the repository."""
        target = posixpath.normpath(posixpath.join("docs", here, found[1]))
        return found[0] if target.startswith("docs/") else f"]({config.repo_url}/blob/main/{target})"

    up = "../" if here else ""
    glossary, questions = (f"{up}reference/{name}.md" for name in ("glossary", "faq"))
    footer = f"Unknown word? See the [Glossary]({glossary}) or [Questions and answers]({questions})."
    return re.sub(r"\]\((\.\./[^)]*)\)", linked, markdown) + f"\n\n---\n\n{footer}\n"


def commands() -> Iterator[str]:
    yield "# Commands\n\nEach page is what `comity NAME --help` prints."
    for each in overview():
        yield f"\n## comity {each.name}\n\n```text\n{each.help()}```"


def options() -> Iterator[str]:
    yield "# Options of components\n"
    yield "What is chosen by name has options of its own, behind a dot: `--rule ConFREE --rule.c 0.4`, in YAML and"
    yield "Python `{name: ConFREE, c: 0.4}`."
    yield "Options of a run itself are on the page of [comity run](commands.md#comity-run)."
    for kind in KINDS:
        yield f"\n## {kind}"
        for each in described(kind).values():
            yield f"\n### {each.name}\n\n{each.about}" + (f" ({each.paper})" if each.paper not in each.about else "")
            if each.options:
                yield "\n| option | type | default | |\n|---|---|---|---|"
            for o in each.options.values():
                default = "required" if o.default is REQUIRED else f"`{o.default}`"
                yield f"| `--{kind}.{o.name}` | {o.kind.replace('|', 'or')} | {default} | {o.help} |"
