"""``comity`` and ``python -m comity``: the overview, and the way to each command."""

import sys

from comity._errors import ComityError

OVERVIEW = """\
comity: personalised federated learning that does no harm

  comity run         train a federation and write a run folder
  comity study       compare methods and rules over seeds: a grid of runs, and its table
  comity report      an HTML report of runs and studies: who gains, who is harmed, and why
  comity table       the table of a study again, as Markdown, LaTeX or CSV
  comity reproduce   a paper's experiment by name, --scale desk or paper
  comity inspect     who is in conflict among models in files, and whom their mean would harm
  comity aggregate   models in files into one, by any rule
  comity flower      a Flower app for a configuration
  comity data        show who holds which samples, as a table and a picture
  comity list        methods | rules | models | data | partitions | examples

Try      comity run --method FedRep --partition dirichlet --partition.alpha 0.1 --rounds 30
         comity study --method FedAvg,FedRep --rule Mean,ConFREE --seeds 3 --out studies/first
Options  comity run --help        all of them, with their defaults
         comity run --method Ditto --help   and those of a method, rule, model or partition
"""


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(OVERVIEW, end="")
        return 0
    if arguments[0] == "--version":
        from comity import __version__

        print(f"comity {__version__}")
        return 0
    try:
        from comity.cli import command

        return command(arguments[0], arguments[1:])
    except ComityError as error:
        print(f"comity: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("comity: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
