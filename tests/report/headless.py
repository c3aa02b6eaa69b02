"""A headless Chromium, controlled through two pipes: no driver, no library."""

import base64
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --disable-extensions "
    "--hide-scrollbars --force-color-profile=srgb"
)


def find() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One tab. ``problems`` are console errors and exceptions since the last page was opened."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._buffer, self._number, self._session = b"", 0, None
        self.problems: list[str] = []
        self._loaded = False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session and not method.startswith("Browser."):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        number, deadline = self._number, time.monotonic() + 30
        while time.monotonic() < deadline:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
        raise TimeoutError(method)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._back, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser is gone")
            self._buffer += chunk
        raw, self._buffer = self._buffer.split(b"\0", 1)
        event: dict[str, Any] = json.loads(raw)
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            about = params["exceptionDetails"]
            self.problems.append(about.get("exception", {}).get("description") or about["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and params["request"]["url"].startswith("http"):
            self.problems.append(f"asked the network for {params['request']['url']}")
        return event

    def open(self, path: Path, width: int = 1280, height: int = 900, *, dark: bool = False) -> float:
        """Show a page; the seconds until it was loaded and drawn."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self._go("about:blank")  # the same address again would be a reload, which keeps what the reader chose
        self.problems.clear()
        started = time.monotonic()
        self._go(path.resolve().as_uri())
        self.js("new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")
        return time.monotonic() - started

    def _go(self, address: str) -> None:
        self._loaded = False
        self.send("Page.navigate", url=address)
        while not self._loaded:
            self._receive()

    def js(self, expression: str) -> Any:
        """The value of an expression, or of its promise; once more if the page reloads itself meanwhile."""
        try:
            answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        except RuntimeError as error:
            if "navigated" not in str(error):
                raise
            return self.js(expression)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "failed"))
        return answer["result"].get("value")

    def all(self, selector: str, of_each: str) -> Any:
        """A list with the value of an expression for each ``node``."""
        return self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map(node => {of_each})")

    def text(self, selector: str) -> str:
        """The text of the first such element."""
        return self.js(f"document.querySelector({json.dumps(selector)}).textContent")

    def click(self, selector: str) -> None:
        """A real press of the mouse in the middle of an element."""
        x, y = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.point(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def downloads(self, folder: Path) -> None:
        self.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def picture(self, path: Path) -> None:
        """A screenshot of the window."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def pages(self) -> int:
        """The number of A4 pages that the page is printed on."""
        pdf = base64.b64decode(self.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])
        return len(re.findall(rb"/Type\s*/Page\b", pdf))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in ``folder``."""
    command = find()
    assert command is not None
    read_here, write_there = os.pipe()
    read_there, write_here = os.pipe()

    # Chromium reads commands from descriptor 3 and answers on 4; the shell puts our pipes there.
    script = f'exec "$0" "$@" 3<&{read_there} 4>&{write_there}'
    arguments = [*FLAGS.split(), f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(["bash", "-c", script, command, *arguments], pass_fds=(read_there, write_there), **quiet)
    os.close(read_there)
    os.close(write_there)
    try:
        yield Browser(write_here, read_here)
    finally:
        os.close(write_here)  # with its pipe closed it ends by itself
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(read_here)
