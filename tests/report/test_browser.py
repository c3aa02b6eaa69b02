"""The page in a real browser: drawn, sorted by a click, no errors, on a phone and on a desk, light and dark."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from headless import Browser, browser, find
from test_page import EVIL

from comity._write import write_text
from comity.compare import LoadedStudy
from comity.report import write
from comity.report._page import page
from comity.results import ClientScores
from helpers import wait_for
from run_folders import make

pytestmark = pytest.mark.skipif(find() is None, reason="no browser: neither chromium nor google-chrome is installed")

PHONE, DESK = 390, 1280
HOVERED = ("convergence", "clients", "partition", "reasons", "cosines", "layers", "weights", "general")
PLOTS = {*HOVERED, "sweep", "conflict", "choice", "against", "slopes", "time", "bytes"}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_problems(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever was done, nothing of it was an error in the console."""
    yield
    if "tab" in request.fixturenames:
        assert request.getfixturevalue("tab").problems == []


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods × three rules × two seeds × two conditions, with clients that choose_dropouts."""
    folder = tmp_path_factory.mktemp("study")
    random = np.random.default_rng(0)
    for seed in (0, 1):
        alone = random.uniform(0.5, 0.9, 12)
        make(folder / f"local-{seed}", alone.tolist(), method="Local", seed=seed)
        for alpha, method, rule in product((0.1, 1.0), ("FedRep", "Ditto"), ("Mean", "ConFREE", "Auto")):
            accuracy = np.clip(alone + random.normal(0.03, 0.08, 12), 0, 1).tolist()
            more = {"method": method, "rule": rule, "seed": seed, "options": {"partition.alpha": alpha}}
            make(folder / f"{method}-{rule}-{alpha}-{seed}", accuracy, alone=alone.tolist(), **more)
    return write([folder], folder / "report.html")


NAMES = [f"Site <{client}>" for client in range(14)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 configurations of two classes: client 3 loses 40 points, clients from 10 on gain 20, tests are few or many."""
    folder = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(0)
    methods, rules = ("FedAvg", "FedRep", "Ditto", "APFL", "FedPer", "FedProx"), ("Mean", "ConFREE", "CALM", "MGDA")
    label = np.arange(40) % 2
    probability = np.clip(0.2 + 0.6 * label + random.normal(0, 0.3, 40), 0.01, 0.99)
    one = ClientScores(id=np.arange(40), label=label, score=(probability > 0.5) == label, probability=probability)
    for seed in (0, 1, 2):
        common = {"seed": seed, "same_partition": True, "tests": 300, "names": (NAMES, ("well", "ill"))}
        make(folder / f"local-{seed}", [0.6] * 14, method="Local", **common)
        for place, (method, rule) in enumerate(product(methods, rules)):
            accuracy = [0.2 if client == 3 else 0.8 if client >= 10 else 0.6 + place / 1000 for client in range(14)]
            more = common | {"method": method, "rule": rule, "samples": dict.fromkeys(range(14), one)}
            make(folder / f"{method}-{rule}-{seed}", accuracy, alone=[0.6] * 14, **more)
    return write([folder], folder / "report.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_every_plot_is_drawn(tab: Browser, report: Path, width: int, dark: bool) -> None:
    tab.open(report, width, dark=dark)
    assert tab.js("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    drawn = "[node.parentNode.id, Number(node.dataset.marks)]"
    marks = dict(tab.all("figure:not([hidden]) .canvas[data-marks]", drawn))
    assert {f"plot-{name}" for name in PLOTS} == set(marks)
    assert min(marks.values()) > 0, marks
    assert tab.js("document.documentElement.scrollWidth") <= width
    boxes = tab.all("figure:not([hidden]) svg[role=img] *", "node.getBoundingClientRect().toJSON()")
    assert max(box["right"] for box in boxes if box["width"]) <= width + 1  # nothing is drawn beyond its card
    titles = tab.all("figure:not([hidden]) h3", "node.textContent")
    assert all(titles)
    assert len(titles) == len(PLOTS) + 1  # and the rows of the clients


def test_the_table_is_sorted_by_a_click(tab: Browser, report: Path) -> None:
    tab.open(report, DESK)
    heading = "#results thead th:nth-child(3)"  # accuracy, after the name and the setting

    def values() -> list[float]:
        return [float(value) for value in tab.all("#results tbody tr td:nth-child(3)", "node.dataset.v")]

    before = values()
    assert sorted(before) != before != sorted(before, reverse=True)
    for order, expected in {
        "descending": sorted(before, reverse=True),
        "ascending": sorted(before),
        "none": before,
    }.items():
        tab.click(f"{heading} button")
        assert values() == expected
        assert tab.all(heading, "node.getAttribute('aria-sort')") == [order]


def test_choices_redraw(tab: Browser, report: Path) -> None:
    tab.open(report, DESK)
    first = tab.text("#plot-rows h3")
    tab.js(
        "(() => { const list = document.querySelector('#plot-rows select[aria-label=\"method and rule\"]');"
        " list.selectedIndex = (list.selectedIndex + 1) % list.options.length;"
        " list.dispatchEvent(new Event('change')); })()"
    )
    second = tab.text("#plot-rows h3")
    assert second != first
    assert tab.text("#plot-weights h3").split(": ")[1].startswith(second.split(" against")[0])
    lines = "#plot-convergence path[data-of][fill=none]"
    shown = len(tab.all(lines, "0"))
    tab.click("#plot-convergence .legend button")
    assert len(tab.all(lines, "0")) == shown - 1
    tab.click("#theme")
    assert tab.js("document.documentElement.dataset.theme") == "dark"
    tab.click("#plot-cosines .segments[aria-label=order] button:nth-child(2)")


def test_the_rows_of_the_clients_are_the_verdicts(tab: Browser, large: Path) -> None:
    tab.open(large, DESK)
    verdict = LoadedStudy(large.parent).verdict
    assert tab.text("h1") == verdict.title
    assert tab.text("#plot-rows h3") == f"{verdict.cell.label} against local training"
    rows = verdict.cell.clients
    assert {row.state for row in rows} == {"worse", "not worse"}

    def listed(of_each: str) -> list[str]:
        return tab.all(".clients tbody tr:not(:first-child)", of_each)

    names = "node.querySelector('th').firstChild.textContent"
    assert listed(names) == [row.name for row in rows[:12]]
    assert listed("node.querySelector('.state').textContent") == [row.state for row in rows[:12]]
    assert rows[0].name == NAMES[3]
    assert listed("node.children[2].textContent")[0] == f"−40.0[{_points(rows[0].low)}, {_points(rows[0].high)}]"
    tab.click("#plot-rows .fold")
    assert listed(names) == [row.name for row in rows]
    dots = tab.all("#plot-clients .canvas circle[fill='#cf4125']", "0")
    assert len(dots) == sum(len(cell.with_state("worse")) for cell in LoadedStudy(large.parent).cells)


def _points(share: float) -> str:
    return f"{100 * share:.1f}".replace("-", "−")


def test_curves_open_with_local_training_and_the_nearest(tab: Browser, large: Path) -> None:
    tab.open(large, DESK)
    lines = "#plot-convergence path[data-of][fill=none]"
    verdict = LoadedStudy(large.parent).verdict
    shown = tab.all(lines, "node.dataset.of")
    assert len(shown) == 5
    assert {"Local", verdict.cell.label} <= set(shown)
    tab.click("#plot-convergence .legend .fold")
    assert len(tab.all(lines, "0")) == 25


def test_all_columns_are_shown_on_request(tab: Browser, large: Path) -> None:
    tab.open(large, DESK)
    visible = "[...document.querySelectorAll('#results thead th')].filter(node => node.offsetWidth).length"
    assert tab.js(visible) <= 7
    tab.click("#more")
    assert tab.js(visible) == len(tab.all("#results thead th", "0")) > 7


def test_two_classes_have_curves_of_the_chosen_client(tab: Browser, large: Path) -> None:
    tab.open(large, DESK)
    rows = tab.all("#plot-binary tbody tr", "[...node.cells].map(cell => cell.textContent)")
    assert len(rows) == 12
    assert rows[0][:3] == [NAMES[3], "120", "60"]
    assert tab.text("#plot-roc h3") == f"ROC curve: {NAMES[3]}"
    tab.js(
        "(() => { const list = document.querySelector('#plot-roc select'); list.selectedIndex = 1;"
        " list.dispatchEvent(new Event('change')); })()"
    )
    assert tab.text("#plot-calibration h3") == f"Calibration: {rows[1][0]}"


def test_24_configurations_print_on_six_pages(tab: Browser, large: Path) -> None:
    tab.open(large, DESK)
    assert 2 <= tab.pages() <= 6
    assert tab.js("document.querySelector('#results table').style.zoom") == ""  # and the screen is as before


def test_hovering_tells_values(tab: Browser, report: Path) -> None:
    tab.open(report, DESK)
    for plot in HOVERED:
        x, y = tab.js(
            f"(() => {{ const svg = document.querySelector('#plot-{plot} svg[role=img]');"
            " svg.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const marks = [...svg.querySelectorAll('circle, rect[fill=transparent], path[stroke], rect[rx]')];"
            " const box = marks[marks.length - 1].getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        tab.js("document.querySelector('.tip')?.replaceChildren()")
        tab.point(x, y)
        assert tab.text(".tip"), plot


def test_a_plot_can_be_saved(tab: Browser, report: Path, tmp_path: Path) -> None:
    tab.open(report, DESK, dark=True)
    tab.downloads(tmp_path)
    svg, png = (tmp_path / f"comity-weights.{kind}" for kind in ("svg", "png"))
    for button, file in enumerate((svg, png), 1):
        tab.click(f"#plot-weights .save button:nth-child({button})")
        wait_for(lambda file=file: file.exists() and file.stat().st_size)  # type: ignore[misc]
    told = " ".join(node.text or "" for node in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text"))
    assert "Weight of each client" in told
    assert "var(--" not in svg.read_text()  # no style sheet is needed
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.stat().st_size > 5000


def test_names_do_not_run(tab: Browser, tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6, 0.4, 0.7], alone=[0.5] * 3, method=EVIL, layers=(EVIL,), options={"rule.<b>": EVIL})
    make(tmp_path / "b", [0.6, 0.4, 0.7], alone=[0.5] * 3, method=EVIL, layers=(EVIL,), rule=EVIL)
    tab.open(write([tmp_path], tmp_path / "r.html"), DESK)
    assert tab.js("window.hacked") is None
    assert len(tab.all("#results b", "0")) == 2
    assert EVIL in tab.text("#plot-convergence .legend")


def test_runs_that_know_little(tab: Browser, tmp_path: Path) -> None:
    make(tmp_path / "local" / "a", [0.6] * 4, method="Local")
    make(tmp_path / "unfinished" / "a", [0.6] * 4, rounds=9, done=3)
    make(tmp_path / "unfinished" / "b", [0.6] * 4, rounds=9, done=0, rule="CALM")
    for study in ("local", "unfinished"):
        tab.open(write([tmp_path / study], tmp_path / "r.html"), PHONE)
        assert tab.problems == []
        assert tab.js("document.documentElement.scrollWidth") <= PHONE


def test_a_page_that_follows_keeps_its_place(tab: Browser, tmp_path: Path) -> None:
    for rule in ("Mean", "CALM"):
        make(tmp_path / f"b-{rule}", [0.6, 0.7, 0.5], alone=[0.5] * 3, rule=rule, rounds=9, done=3)
    file = tmp_path / "r.html"
    write_text(file, page(LoadedStudy(tmp_path), live=1.5))
    tab.open(file, DESK)
    tab.click("#plot-convergence .segments[aria-label=over] button:nth-child(2)")
    tab.click('#plot-weights [aria-label="method and rule"] button:nth-child(2)')
    chosen = tab.text("#plot-layers h3")
    tab.js("scrollTo({top: 1234, behavior: 'instant'})")
    make(tmp_path / "a-first", [0.6, 0.7, 0.5], alone=[0.5] * 3, method="Ditto", rounds=9, done=5)
    write_text(file, page(LoadedStudy(tmp_path), live=None))
    wait_for(lambda: any("Ditto" in label for label in tab.all("#plot-convergence .key", "node.textContent")))
    assert abs(tab.js("scrollY") - 1234) < 5
    assert tab.text("#plot-layers h3") == chosen
    assert tab.text(".segments[aria-label=over] [aria-pressed=true]") == "seconds"
