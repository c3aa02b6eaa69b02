"""``comity report``."""

from pathlib import Path

from comity._errors import complain, printable
from comity.commands._command import Command


def report(
    paths: tuple[Path, ...],
    *,
    output: Path = Path("report.html"),
    base: str | None = None,
    figures: Path | None = None,
    watch: bool = False,
    open: bool = False,
    quiet: bool = False,
) -> int:
    """Write an HTML report: who gains, who is harmed, and why.

    Examples:
        comity report studies/first -o report.html
        comity report runs/a runs/b --watch

    Options:
        paths: run folders, or folders that contain runs or studies
        output: HTML file to write
        base: rule that others are compared with, spelled as in the table; by default Mean
        figures: folder for four figures for a paper, as PDF and PNG (needs the extra report)
        watch: wait for the first run and rewrite the page while runs continue; an open page reloads itself; ends with
            the runs or with Ctrl-C
        open: open the page in a browser when it is written
        quiet: print only errors
    """
    from comity.report import write

    last = ""

    def say(words: str) -> None:
        nonlocal last
        if not quiet and words != last:
            print(printable(words), flush=True)
        last = words

    write(paths, output, base=base, figures=figures, watch=watch, say=say, warn=complain)
    link = output.absolute().as_uri()
    say(link)
    if open:
        import webbrowser

        webbrowser.open(link)
    return 0


COMMAND = Command(report, order=3)
