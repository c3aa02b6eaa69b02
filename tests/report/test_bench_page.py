"""The page of a benchmark: safe, self-contained, readable on a phone, and what it marks is what was found."""

import math
import re
from pathlib import Path
from typing import Any

import headless
import pytest

from comity.compare import ClientRow, FederationClients, Leaderboard, Result
from comity.metrics import LOSS, OWN
from comity.report import Benchmark, bench_page
from comity.results import State

EVIL = "</td><script>alert(1)</script>"
NAMES = ("FedAvg", "FedAvg, guarded", EVIL)


def client(name: str, gain: float, state: State) -> ClientRow:
    about: dict[str, Any] = {"client": 0, "seed": None, "train": 20.0, "tests": 10, "value": 0.8 + gain, "local": 0.8}
    return ClientRow(
        name=name, gain=gain, low=gain - 0.1, high=gain + 0.1, state=state, detectable=math.inf, constant=False, **about
    )


def benchmark(federations: int = 3) -> Benchmark:
    results, clients = [], []
    for k in range(federations):
        about: dict[str, Any] = {"federation": f"place {k}", "seeds": 3, "conditions": "rounds=3", "metric": "accuracy"}
        results.append(Result(configuration="Local", kind="reference", value=80, gain=0.0, **about))
        for place, name in enumerate(NAMES):
            numbers: dict[str, Any] = {
                "gain": place - 1.5,
                "low": place - 2.5,
                "high": place - 0.5,
                "worse": place == 0,
                "undecided": 1,
            }
            results.append(Result(configuration=name, value=80 + place, stored=place == 2, **numbers, **about))
        rows = {
            name: {"Zurich": client("Zurich", -0.2, "worse"), EVIL: client(EVIL, 0.1, "undecided")} for name in NAMES
        }
        clients.append(FederationClients(f"place {k}", LOSS if k else OWN, rows))
    return Benchmark(Leaderboard(results), clients, {"torch": "2", "core hours": "1.0"}, ["a remark"])


def test_the_page_runs_no_script_and_fetches_nothing() -> None:
    page = bench_page(benchmark())
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.findall(r"https?://", page)
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL).replace("finance", "")


def test_cells_say_what_the_results_say() -> None:
    page = bench_page(benchmark())
    assert "<h1>No clear winner</h1>" in page
    assert "<h1>Best mean rank: &lt;/td&gt;" in bench_page(benchmark(30)), "more federations distinguish the same ranks"
    assert page.count("state-worse") - 1 == 3 * 3, "one worse client per federation and configuration, and the style"
    assert page.count('<td class="loss">') == 3, "FedAvg's interval is below zero"
    assert ">−20</td>" in page, "points of accuracy"
    assert "−20.0 [−30.0, −10.0], worse" in page
    assert "−0.20</td>" in page, "log-loss has its own unit"
    assert page.count('<span class="stored">stored</span>') == 2
    assert "a remark" in page
    assert "core hours: 1.0" in page
    assert ">3 federations · 6 clients · gain" in page
    assert ">1 federation · 2 clients · gain" in bench_page(benchmark(1))


@pytest.mark.skipif(headless.find() is None, reason="no browser")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_a_phone_and_a_screen(width: int, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(bench_page(benchmark(12)))
    with headless.browser(tmp_path / "browser") as tab:
        tab.open(file, width, 900)
        assert tab.problems == []
        wide = tab.send("Runtime.evaluate", expression="document.documentElement.scrollWidth", returnByValue=True)
        assert wide["result"]["value"] <= width
