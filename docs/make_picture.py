"""Pictures of the report, from the demo's own output: `make picture`; `--check` says whether README's still shows it.

README's picture carries the table that it was made from. Another processor may round a little differently, so numbers
of the two tables may differ a little, and nothing else may.
"""

import csv
import io
import json
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

import comity
from comity.compare import LoadedStudy

ROOT = Path(__file__).parents[1]
DEMO, IMAGES = ROOT / "studies" / "demo", ROOT / "docs" / "images"
PICTURE = IMAGES / "report-demo.png"
SECTIONS = {"report-clients.png": ("binary", False), "report-conflict-dark.png": ("conflict", True)}
"""Section of the report that a picture begins with, and whether it is dark."""
PHONE = (("", False), ("spread", False), ("conflict", True))
"""The same for the three parts of report-phone.png; without a section it is the top of the page."""
SHOWN = ("method", "rule", "log-loss", "gain", "worse", "worse undecided", "worse not worse")
TOLERANCE = 0.01
"""Of log-loss and gains, in nats."""
WIDTH, HEIGHT = 1280, 1400


def table() -> list[dict[str, str]]:
    study = comity.load(DEMO)
    assert isinstance(study, LoadedStudy)
    return list(csv.DictReader(io.StringIO(study.table().csv())))


def draw() -> None:
    sys.path.append(str(ROOT / "tests" / "report"))
    from headless import browser

    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as tab:

        def shot(path: Path, section: str, dark: bool, width: int = WIDTH, height: int = HEIGHT) -> Path:
            tab.open(DEMO / "report.html", width, height, dark=dark)
            if section:
                tab.js(f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}})")
            tab.picture(path)
            return path

        shot(PICTURE, "", False)
        for name, (section, dark) in SECTIONS.items():
            shot(IMAGES / name, section, dark)
        parts = [shot(Path(folder, f"{k}.png"), *part, 390, 800) for k, part in enumerate(PHONE)]
        screens = [Image.open(part).convert("RGB") for part in parts]
    phone = Image.new("RGB", (3 * 390 + 2 * 25, 800), "white")
    for place, screen in enumerate(screens):
        phone.paste(screen, (place * 415, 0))
    phone.save(IMAGES / "report-phone.png", optimize=True)
    about = PngInfo()
    about.add_text("table", json.dumps([{name: row[name] for name in SHOWN} for row in table()]))
    with Image.open(PICTURE) as picture:
        picture.convert("RGB").save(PICTURE, pnginfo=about, optimize=True)


def check() -> None:
    with Image.open(PICTURE) as picture:
        shown = json.loads(picture.info["table"])
    for before, now in zip(shown, table(), strict=True):
        for name in SHOWN:
            numeric = name in ("log-loss", "gain") and before[name] and now[name]
            alike = abs(float(before[name]) - float(now[name])) < TOLERANCE if numeric else before[name] == now[name]
            if not alike:
                sys.exit(
                    f"{PICTURE}: {name} of {now['method']} is {before[name]}, in the demo {now[name]}: make picture"
                )


if __name__ == "__main__":
    check() if "--check" in sys.argv else draw()
