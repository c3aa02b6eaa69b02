"""The page in a real browser: drawn, sorted by a click, no errors, on a phone and on a desk, light and dark."""

import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from headless import Browser, browser, find
from test_page import EVIL

from comity._write import write_text
from comity.report import write
from comity.report._page import page
from comity.results import LoadedStudy
from run_folders import make

pytestmark = pytest.mark.skipif(find() is None, reason="no browser: neither chromium nor google-chrome is installed")

PHONE, DESK = 390, 1280
PLOTS = {
    *("convergence", "sweep", "clients", "gain", "partition", "reasons", "cosines", "conflict", "layers", "weights"),
    *("choice", "against", "general", "slopes", "time", "bytes"),
}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods × three rules × two seeds × two conditions, with clients that lose."""
    folder = tmp_path_factory.mktemp("study")
    random = np.random.default_rng(0)
    for seed in (0, 1):
        alone = random.uniform(0.5, 0.9, 12)
        make(folder / f"local-{seed}", alone.tolist(), method="Local", seed=seed)
        for alpha in (0.1, 1.0):
            for method in ("FedRep", "Ditto"):
                for rule in ("Mean", "ConFREE", "Auto"):
                    accuracy = np.clip(alone + random.normal(0.03, 0.08, 12), 0, 1).tolist()
                    name = f"{method}-{rule}-{alpha}-{seed}"
                    options = {"partition.alpha": alpha}
                    make(
                        folder / name,
                        accuracy,
                        alone=alone.tolist(),
                        method=method,
                        rule=rule,
                        seed=seed,
                        options=options,
                    )
    return write([folder], folder / "report.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_every_plot_is_drawn(tab: Browser, report: Path, width: int, dark: bool) -> None:
    tab.open(report, width, dark=dark)
    assert tab.problems == []
    assert tab.js("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    marks = tab.js(
        "Object.fromEntries([...document.querySelectorAll('figure:not([hidden]) .canvas[data-marks]')]"
        ".map(node => [node.parentNode.id, Number(node.dataset.marks)]))"
    )
    assert {f"plot-{name}" for name in PLOTS} == set(marks)
    assert min(marks.values()) > 0, marks
    assert tab.js("document.documentElement.scrollWidth") <= width
    # nothing is drawn beyond the edge of its card
    assert (
        tab.js(
            "[...document.querySelectorAll('figure:not([hidden]) svg[role=img] *')].filter(node => {"
            " const box = node.getBoundingClientRect(); return box.width && box.right > innerWidth + 1; }).length"
        )
        == 0
    )
    titles = tab.js("[...document.querySelectorAll('figure:not([hidden]) h3')].map(node => node.textContent)")
    assert all(titles)
    assert len(titles) == len(PLOTS) + 1  # and the table of the harmed


def test_the_table_is_sorted_by_a_click(tab: Browser, report: Path) -> None:
    tab.open(report, DESK)
    column = 2  # accuracy, after the name and the setting
    values = f"[...document.querySelectorAll('#results tbody tr')].map(row => Number(row.cells[{column}].dataset.v))"
    before = tab.js(values)
    heading = f"#results thead th:nth-child({column + 1}) button"
    tab.click(heading)
    assert tab.js(values) == sorted(before, reverse=True) != before
    tab.click(heading)
    assert tab.js(values) == sorted(before)
    assert tab.js(f"document.querySelector('{heading}').parentNode.getAttribute('aria-sort')") == "ascending"
    tab.click(heading)
    assert tab.js(values) == before
    assert tab.problems == []


def test_choices_redraw(tab: Browser, report: Path) -> None:
    tab.open(report, DESK)
    title = "document.querySelector('#plot-gain h3').textContent"
    first = tab.js(title)
    tab.js(
        "(() => { const list = document.querySelector('#plot-gain select[aria-label=\"method and rule\"]');"
        " list.selectedIndex = (list.selectedIndex + 1) % list.options.length;"
        " list.dispatchEvent(new Event('change')); })()"
    )
    assert tab.js(title) != first
    assert (
        tab.js("document.querySelector('#plot-weights h3').textContent")
        .split(": ")[1]
        .startswith(tab.js(title).split(": ")[1].split(",")[0])
    )
    lines = "document.querySelectorAll('#plot-convergence path[data-of][fill=none]').length"
    shown = tab.js(lines)
    tab.click("#plot-convergence .legend button")
    assert tab.js(lines) == shown - 1
    tab.click("#theme")
    assert tab.js("document.documentElement.dataset.theme") == "dark"
    tab.click("#plot-cosines .segments[aria-label=order] button:nth-child(2)")
    assert tab.problems == []


def test_it_opens_at_the_seed_and_client_of_the_headline(tab: Browser, tmp_path: Path) -> None:
    for seed in (3, 4, 5):
        accuracy, only = [0.7] * 4, [0] * 4
        if seed == 4:
            accuracy[2], only[2] = 0.1, 8
        make(tmp_path / str(seed), accuracy, alone=[0.5] * 4, seed=seed, only=(only, [0] * 4))
    tab.open(write([tmp_path], tmp_path / "r.html"), DESK)
    assert "1 beyond chance (client 2 of seed 4)" in tab.js("document.querySelector('h1').textContent")
    assert tab.js("document.querySelector('#plot-gain h3').textContent").endswith("FedRep + Mean, seed 4")
    assert tab.js("document.querySelector('#plot-harmed .named').textContent").startswith("2−40.0")
    assert "Leave" not in tab.js("document.querySelector('.advice').textContent")  # another client in every seed
    tab.click("#plot-gain .segments[aria-label=seed] button:nth-child(1)")
    assert tab.js("document.querySelectorAll('.named').length") == 0
    assert tab.problems == []


def test_hovering_tells_values(tab: Browser, report: Path) -> None:
    tab.open(report, DESK)
    for plot in ("convergence", "clients", "gain", "partition", "reasons", "cosines", "layers", "weights", "general"):
        x, y = tab.js(
            f"(() => {{ const svg = document.querySelector('#plot-{plot} svg[role=img]');"
            " svg.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const marks = [...svg.querySelectorAll('circle, rect[fill=transparent], path[stroke], rect[rx]')];"
            " const box = marks[marks.length - 1].getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        tab.js("document.querySelector('.tip')?.replaceChildren()")
        tab.point(x, y)
        assert tab.js("document.querySelector('.tip')?.textContent || ''"), plot


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_plot_can_be_saved(tab: Browser, report: Path, tmp_path: Path, kind: str) -> None:
    tab.open(report, DESK, dark=True)
    tab.downloads(tmp_path)
    tab.click(f"#plot-weights .save button:nth-child({1 if kind == 'svg' else 2})")
    file = tmp_path / f"comity-weights.{kind}"
    deadline = time.monotonic() + 10
    while not (file.exists() and file.stat().st_size) and time.monotonic() < deadline:
        tab.js("new Promise(done => setTimeout(done, 50))")
    content = file.read_bytes()
    if kind == "svg":
        root = ElementTree.fromstring(content)
        told = " ".join(node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text"))
        assert "How much each client counts" in told
        assert b"var(--" not in content  # no style sheet is needed
    else:
        assert content.startswith(b"\x89PNG")
        assert len(content) > 5000


def test_names_do_not_run(tab: Browser, tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6, 0.4, 0.7], alone=[0.5] * 3, method=EVIL, layers=(EVIL,), options={"rule.<b>": EVIL})
    make(tmp_path / "b", [0.6, 0.4, 0.7], alone=[0.5] * 3, method=EVIL, layers=(EVIL,), rule=EVIL)
    tab.open(write([tmp_path], tmp_path / "r.html"), DESK)
    assert tab.problems == []
    assert tab.js("window.hacked") is None
    assert tab.js("document.querySelectorAll('#results b').length") == 3
    assert EVIL in tab.js("document.querySelector('.legend').textContent")


def test_an_unfinished_run(tab: Browser, tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6] * 4, rounds=9, done=3)
    make(tmp_path / "b", [0.6] * 4, rounds=9, done=0, rule="CALM")
    tab.open(write([tmp_path], tmp_path / "r.html"), PHONE)
    assert tab.problems == []
    assert tab.js("document.documentElement.scrollWidth") <= PHONE


def test_only_local(tab: Browser, tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6] * 4, method="Local")
    tab.open(write([tmp_path], tmp_path / "r.html"), DESK)
    assert tab.problems == []


def test_a_page_that_follows_keeps_its_place(tab: Browser, tmp_path: Path) -> None:
    for rule in ("Mean", "CALM"):
        make(tmp_path / f"b-{rule}", [0.6, 0.7, 0.5], alone=[0.5] * 3, rule=rule, rounds=9, done=3)
    file = tmp_path / "r.html"
    write_text(file, page(LoadedStudy(tmp_path), live=0.3))
    tab.open(file, DESK)
    tab.click("#plot-convergence .segments[aria-label=over] button:nth-child(2)")
    tab.click('#plot-weights [aria-label="method and rule"] button:nth-child(2)')
    chosen = tab.js("document.querySelector('#plot-layers h3').textContent")
    tab.js("scrollTo({top: 1234, behavior: 'instant'})")
    make(tmp_path / "a-first", [0.6, 0.7, 0.5], alone=[0.5] * 3, method="Ditto", rounds=9, done=5)
    write_text(file, page(LoadedStudy(tmp_path), live=None))
    labels = "[...document.querySelectorAll('#plot-convergence .key')].map(node => node.textContent).join()"
    deadline = time.monotonic() + 15
    while "Ditto" not in tab.js(labels) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "Ditto" in tab.js(labels)
    assert abs(tab.js("scrollY") - 1234) < 5
    assert tab.js("document.querySelector('#plot-layers h3').textContent") == chosen
    assert tab.js("document.querySelector('.segments[aria-label=over] [aria-pressed=true]').textContent") == "seconds"
    assert tab.problems == []
