"""What a wheel must do where nothing but its requirements is installed; run by the python of that environment."""

import subprocess
import sys
import tempfile
from pathlib import Path

COMITY = Path(sys.executable).with_name("comity")
COMMANDS = """\
--version
list methods
list examples
run --data heart --rounds 1 --quiet --out runs/heart
run --clients 4 --rounds 1 --quiet --out runs/digits
report runs/heart runs/digits -o report.html
"""

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for line in COMMANDS.splitlines():
            print(f"comity {line}", flush=True)
            subprocess.run([COMITY, *line.split()], cwd=folder, check=True)
