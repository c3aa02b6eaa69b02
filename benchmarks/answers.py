"""What people wait for: help, the first line, ``ask`` and ``join`` on the table of four hospitals, ``bench --quick``.

python benchmarks/answers.py [--repeats 3] [--quick]     # seconds by the clock, and of all processes

Each command is a process of its own, in an empty folder, with as many threads as it takes by itself.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import comity
from round import header

TABLE = str(Path(comity.__file__).parent / "data" / "sources" / "heart.csv")
FIRST_LINES = (
    ["ask", TABLE],
    ["join", TABLE],
    ["run"],
    ["study", "--method", "FedAvg,FedRep"],
    ["bench", "--quick", "--federations", "heart"],
)


def taken(command: Sequence[str], first_line: bool = False) -> tuple[float, float]:
    """Seconds by the clock and of processor time of a command, to its end or to its first line."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    output = subprocess.PIPE if first_line else subprocess.DEVNULL
    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-m", "comity", *command], stdout=output, cwd=folder, env=environment
        ) as process,
    ):
        if first_line:
            assert process.stdout is not None
            assert process.stdout.readline()
            clock = time.perf_counter() - started
            process.kill()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if not first_line:
            clock = time.perf_counter() - started
            assert process.returncode == 0, command
    return clock, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="`comity bench --quick`, once, and nothing else")
    args = parser.parse_args()
    commands = [(["--help"], False), (["ask", TABLE], False), (["join", TABLE], False)]
    commands += [(command, True) for command in FIRST_LINES]
    if args.quick:
        commands, args.repeats = [(["bench", "--quick"], False)], 1
    print(header("command", numbers=("s by the clock", "processor s")))
    for command, first_line in commands:
        times = zip(*(taken(command, first_line) for _ in range(args.repeats)), strict=True)
        cells = [f"{statistics.median(each):.2f} ({min(each):.2f}–{max(each):.2f})" for each in times]
        name = " ".join(["comity", *command]).replace(TABLE, "heart.csv")
        print(f"| `{name}`{', first line' * first_line} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
