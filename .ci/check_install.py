"""What a wheel must do where nothing but its requirements is installed; run by the python of that environment."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COMITY = shutil.which("comity", path=Path(sys.executable).parent)  # comity.exe on Windows
COMMANDS = """\
--version
list methods
list examples
run --data heart --rounds 1 --quiet --out runs/heart
run --clients 4 --rounds 1 --quiet --out runs/digits
report runs/heart runs/digits -o report.html
"""

if __name__ == "__main__":
    if COMITY is None:
        sys.exit("the command comity is not installed beside this python")
    with tempfile.TemporaryDirectory() as folder:
        for line in COMMANDS.splitlines():
            print(f"comity {line}", flush=True)
            subprocess.run([COMITY, *line.split()], cwd=folder, check=True)
