"""The ``comity`` command (also ``python -m comity``): overview and dispatch to each command."""

import atexit
import gc
import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] == os.getcwd():
    import comity

    # `python -m` puts the working directory before all libraries: a torch.py among downloads would be executed
    if os.path.dirname(os.path.dirname(comity.__file__)) != sys.path[0]:
        del sys.path[0]

from collections.abc import Sequence

from comity import __version__
from comity._errors import ComityError, complain

atexit.register(gc.freeze)  # otherwise Python garbage-collects all of torch once more at exit: 0.5 s

HEAD = "comity: personalised federated learning that measures who gains and who is harmed"
FOOT = """\
Try      comity ask patients.csv --target outcome --client hospital
         comity run --method FedRep --partition.alpha 0.1 --rounds 30
         comity study --method FedAvg,FedRep --seeds 3 --out studies/first
Options  comity run --help                  options of a run, with defaults
         comity run --method Ditto --help   options of one method, rule, guard …
"""


def main(argv: Sequence[str] | None = None) -> int:
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name == "--version":
        print(f"comity {__version__}")
        return 0
    from comity import commands

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # for a terminal or file that cannot encode all characters
    try:
        if name not in ("-h", "--help", "help"):
            code = commands.command(name, arguments)
        else:
            lines = [f"  comity {each.name:<11} {each.description[0]}" for each in commands.overview()]
            print("\n".join([HEAD, "", *lines, "", FOOT]), end="")
            code = 0
        sys.stdout.flush()
        return code
    except ComityError as error:
        return _said(str(error), 2)
    except KeyboardInterrupt:
        return _said("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has stopped, like `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit finds no pipe
        return 141
    except OSError as error:  # a full disk, a folder without write permission, a name that is too long
        return _said(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error), 1)


def _said(error: str, code: int) -> int:
    """Print an error as one line and return the exit code."""
    complain(error)
    return code


if __name__ == "__main__":
    sys.exit(main())
