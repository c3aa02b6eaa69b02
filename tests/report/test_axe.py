"""The page against WCAG 2.2 AA, as far as axe can tell: `make js` puts axe beside this and runs it."""

import json
from pathlib import Path

import pytest
from headless import Browser, find
from test_browser import DESK, PHONE, large, report, tab

__all__ = ["large", "report", "tab"]  # fixtures

AXE = Path(__file__).parents[1] / "js" / "node_modules" / "axe-core" / "axe.min.js"
STANDARD = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find() is None, reason="no browser: neither chromium nor google-chrome is installed"),
    pytest.mark.skipif(not AXE.exists(), reason="axe-core is not here: make js"),
]


def violations(tab: Browser, file: Path, width: int, dark: bool) -> list[str]:
    """Of the page with everything opened that can be."""
    tab.open(file, width, dark=dark)
    tab.js("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    tab.js(f"{AXE.read_text()}; 0")
    listed = "found.violations.flatMap(rule => rule.nodes.map(node => `${rule.id}: ${node.html}`))"
    return tab.js(f"axe.run(document, {{runOnly: {json.dumps(STANDARD)}}}).then(found => {listed})")


@pytest.mark.parametrize(("width", "dark"), [(PHONE, False), (PHONE, True), (DESK, False), (DESK, True)])
def test_the_report_stands_in_nobodys_way(tab: Browser, report: Path, large: Path, width: int, dark: bool) -> None:
    for page in (report, large):
        assert violations(tab, page, width, dark) == []


def test_axe_finds_what_is_wrong(tab: Browser, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text("<html><body><img src='data:,'><p style='color:#eee'>pale</p></body></html>")
    found = {line.partition(":")[0] for line in violations(tab, tmp_path / "bad.html", DESK, dark=False)}
    assert {"image-alt", "color-contrast", "html-has-lang"} <= found
