"""What every test in this folder uses. A test tries many damaged inputs; each must give a result or one clear line::

    from fuzz.harness import attempt, damaged, fuzz

    @fuzz("yaml", damaged(VALID))          # the class it is counted under, then a Hypothesis strategy an argument
    def test_yaml(content: bytes) -> None:
        config = attempt(lambda: read(content))     # what was read, or the ComityError that was raised
        assert isinstance(config, ComityError) or config.rounds > 0

``attempt`` fails the test on any other exception, on an error that is not one short printable line, and on too much
memory or time. Tests that are no Hypothesis tests count their cases with ``record``. The inputs are the same each time.

COMITY_FUZZ_EXAMPLES   inputs for each test; 10 unless set, so that the suite stays fast
COMITY_FUZZ_SECONDS    after so many seconds a test tries no further inputs; no limit unless set
COMITY_FUZZ_REPORT     a file to which each test appends a line of JSON: class, test, tried, failed, seconds;
                       ``python tests/fuzz/harness.py FILE`` sums it up by class
"""

import functools
import json
import os
import signal
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption

from comity._errors import ComityError

EXAMPLES = int(os.environ.get("COMITY_FUZZ_EXAMPLES", "10"))
SECONDS = float(os.environ.get("COMITY_FUZZ_SECONDS", "inf"))
LONGEST_ERROR = 500
T = TypeVar("T")


def fuzz(kind: str, *strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Run a test with many inputs drawn from ``strategies``, and count them under the class ``kind``."""

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        tried = failed = 0
        start = 0.0

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],  # making a failing input smaller takes minutes; the inputs are small
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.tuples(*strategies))
        def every(inputs: tuple[Any, ...]) -> None:
            nonlocal tried, failed
            if time.monotonic() - start > SECONDS and not failed:
                return
            tried += not failed  # after a failure Hypothesis tries the same input again
            try:
                test(*inputs)
            except UnsatisfiedAssumption:
                raise
            except Exception:
                failed = 1
                raise

        @functools.wraps(test)
        def run() -> None:
            nonlocal start
            start = time.monotonic()
            try:
                every()
            finally:
                record(kind, test.__name__, tried, failed, time.monotonic() - start)

        run.fuzz_one_input = every.hypothesis.fuzz_one_input  # type: ignore[attr-defined]  # for guided.py
        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would take the arguments for fixtures
        return run

    return decorate


def record(kind: str, test: str, tried: int, failed: int, seconds: float) -> None:
    """Append to the report how many inputs of a class a test tried, and how many went wrong."""
    if report := os.environ.get("COMITY_FUZZ_REPORT"):
        line = {"class": kind, "test": test, "tried": tried, "failed": failed, "seconds": round(seconds, 2)}
        with Path(report).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class NoEnd(BaseException):
    """Not an Exception, which the code under test might catch."""


def attempt(call: Callable[[], T], *, memory: float = 300e6, seconds: float = 20) -> T | ComityError:
    """What ``call`` returns, or its ComityError; an AssertionError if it breaks one of the promises above.

    It may take so many bytes of memory and so many seconds of the processor, and six times as many by the clock.
    """

    def give_up(*_: object) -> None:
        raise NoEnd

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 6 * seconds)
    tracemalloc.start()
    start = time.process_time()
    outcome: T | ComityError
    try:
        outcome = call()
    except ComityError as error:
        outcome = error
        check_error(str(error))
    except NoEnd:
        raise AssertionError(f"no end after {6 * seconds:.0f} seconds") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        took = time.process_time() - start
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert took < seconds, f"took {took:.0f} seconds"
    assert peak < memory, f"took {peak / 1e6:.0f} MB"
    return outcome


def check_error(text: str) -> None:
    assert text.strip(), "an error says something"
    assert len(text) < LONGEST_ERROR, f"{len(text)} characters: {text[:200]!r}…"
    assert text.isprintable(), f"not printable: {text!r}"


NUMBERS = [0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """``content`` cut short, with bytes changed, removed, repeated, inserted, or a number put over some of them."""
    for _ in range(draw(st.integers(1, 4))):
        # not drawn as an integer, most of which are small: the header would get all the damage
        at = int.from_bytes(draw(st.binary(min_size=3, max_size=3)), "big") % max(len(content), 1)
        until = min(len(content), at + draw(st.integers(1, 40)))
        damage = draw(st.sampled_from(["cut", "flip", "number", "number", "remove", "repeat", "insert", "zero"]))
        if damage == "cut":
            content = content[:at]
        elif damage == "flip":
            flipped = bytes([content[at] ^ (1 << draw(st.integers(0, 7)))]) if content else b""
            content = content[:at] + flipped + content[at + 1 :]
        elif damage == "number":
            width, order = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from(["little", "big"]))
            number = draw(st.sampled_from(NUMBERS)) % 256**width
            content = content[:at] + number.to_bytes(width, order) + content[at + width :]
        elif damage == "remove":
            content = content[:at] + content[until:]
        elif damage == "repeat":
            content = content[:until] + content[at:until] * draw(st.integers(1, 50)) + content[until:]
        elif damage == "insert":
            content = content[:at] + draw(st.binary(max_size=30)) + content[at:]
        else:
            content = content[:at] + bytes(until - at) + content[until:]
    return content


def summary(report: Path) -> str:
    """Tried and failed inputs of each class and of all, one line each."""
    sums: dict[str, list[int]] = {}
    for line in map(json.loads, report.read_text(encoding="utf-8").splitlines()):
        row = sums.setdefault(line["class"], [0, 0])
        row[0] += line["tried"]
        row[1] += line["failed"]
    rows = [*sorted(sums.items()), ("all", [sum(column) for column in zip(*sums.values(), strict=True)])]
    return "\n".join(f"| {kind} | {tried:,} | {failed} |" for kind, (tried, failed) in rows)


if __name__ == "__main__":
    print(summary(Path(sys.argv[1])))
