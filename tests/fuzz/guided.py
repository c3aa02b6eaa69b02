"""Coverage-guided fuzzing of the wire, run folders and checkpoint headers with atheris: ``make fuzz-guided``.

The inputs are those of the tests named below, and so are the promises that are checked. Hypothesis makes them from
bytes, and atheris prefers bytes that reach new branches of comity. It is loaded here and nowhere else::

    python tests/fuzz/guided.py 60                    # seconds for each target, with a table at the end
    python tests/fuzz/guided.py 60 test_folders ...   # a target itself, in a process of its own
"""

import importlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

TARGETS = {
    "wire, forged arrays": ("test_wire", "test_a_forged_array_is_read_whole_or_refused"),
    "wire, hostile replies": ("test_wire", "test_a_hostile_reply_is_named_and_changes_nothing"),
    "run folders": ("test_folders", "test_a_damaged_file"),
    "forged checkpoints of runs": ("test_folders", "test_a_forged_checkpoint"),
    "checkpoint headers": ("test_files", "test_a_forged_safetensors_header"),
    "torch archives": ("test_files", "test_a_forged_torch_archive"),
}
"""Module and test, by what is fuzzed."""
SEEDS = 20
"""Random inputs to start from."""
GRACE = 240
"""Seconds to start and to finish the last input in."""


def fuzz_target(seconds: int, module: str, test: str) -> None:
    """Fuzz one target; the process ends with a code other than 0 at the first input that breaks a promise."""
    import atheris

    sys.path.insert(0, str(Path(__file__).parents[1]))
    with atheris.instrument_imports(include=["comity"], enable_loader_override=False):
        one_input = getattr(importlib.import_module(f"fuzz.{module}"), test).fuzz_one_input
    # `attempt` sets alarms of its own. Crashing inputs go to a temporary folder and onto the screen.
    options = [
        "-timeout=1000",
        "-rss_limit_mb=6000",
        "-seed=1",
        "-len_control=0",
        "-max_len=4096",
        "-print_final_stats=1",
    ]
    folder, random = Path(tempfile.mkdtemp()), Random(1)
    for place in range(SEEDS):  # from fewer bytes Hypothesis makes no input
        (folder / f"{place}").write_bytes(random.randbytes(2048))
    times = [f"-max_total_time={seconds}", f"-artifact_prefix={folder}-"]
    atheris.Setup([test, *times, *options, str(folder)], one_input)
    atheris.Fuzz()


def main(seconds: int) -> int:
    """Fuzz every target for so many seconds; print tried and failed by target and return the exit code."""
    rows, failed = [], 0
    for name, target in TARGETS.items():
        command = [sys.executable, __file__, str(seconds), *target]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE, check=False)
        found = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        wrong = done.returncode != 0 or found is None
        if wrong:
            print(done.stdout[-3000:], done.stderr[-6000:], sep="\n")
        rows.append((name, int(found[1]) if found else 0, int(wrong)))
        failed += wrong
    rows.append(("all", sum(tried for _, tried, _ in rows), failed))
    print("\n".join(f"| {name} | {tried:,} | {wrong} |" for name, tried, wrong in rows))
    return int(failed > 0)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        fuzz_target(int(sys.argv[1]), *sys.argv[2:])
    else:
        sys.exit(main(int(sys.argv[1])))
