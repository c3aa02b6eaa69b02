"""``comity`` and ``python -m comity``: the overview, and the way to each command."""

import sys
from collections.abc import Sequence

from comity import __version__
from comity._errors import ComityError

HEAD = "comity: personalised federated learning that does no harm"
FOOT = """\
Try      comity run --method FedRep --partition dirichlet --partition.alpha 0.1 --rounds 30
         comity study --method FedAvg,FedRep --rule Mean,ConFREE --seeds 3 --out studies/first
Options  comity run --help                  all of them, with their defaults
         comity run --method Ditto --help   and those of a method, rule, model or partition
"""


def main(argv: Sequence[str] | None = None) -> int:
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name == "--version":
        print(f"comity {__version__}")
        return 0
    from comity import commands

    sys.path.insert(0, "")  # so that `--method mymod.MyMethod` finds a file beside the user
    try:
        if name not in ("-h", "--help", "help"):
            return commands.command(name, arguments)
        lines = [f"  comity {each:<11} {commands.find(each).description[0]}" for each in commands.COMMANDS]
        print("\n".join([HEAD, "", *lines, "", FOOT]), end="")
        return 0
    except ComityError as error:
        print(f"comity: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("comity: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
