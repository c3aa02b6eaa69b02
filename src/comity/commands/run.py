"""``comity run``."""

from pathlib import Path

from comity._datasets import whereabouts
from comity._errors import ComityError
from comity._labels import slug
from comity.commands._command import RUN_OPTIONS, Command, ConfigFile
from comity.config import AUTO, Config, Entries, Overlay, code_in, reject_code


def run(file: ConfigFile, *, given: Entries, resume: bool = False, overwrite: bool = False, quiet: bool = False) -> int:
    """Train a federation and write a run folder.

    Every option has a default. Methods, rules, models, partitions and data sets are chosen by name. Their options are
    written --KIND.OPTION, such as --rule.c; comity run --rule ConFREE --help lists them.

    With --lr auto, the command runs a small study that chooses the learning rate; the same command resumes it.

    Examples:
        comity run --method FedRep --rule ConFREE --rule.c 0.4 --partition.alpha 0.1 --out runs/first
        comity run --resume --out runs/first

    Options:
        resume: resume the run in --out (give no other options); the result is bit-identical to an uninterrupted run
        overwrite: replace the run in --out
        quiet: print only errors
    """
    if resume and overwrite:
        raise ComityError("--resume and --overwrite exclude each other")
    entries = file.entries(given)
    if entries.get("lr") == AUTO:
        from comity.commands.study import StudyOptions, compare

        out = _with_folder(Config.of({name: value for name, value in entries.items() if name != "lr"})).out
        return compare(entries, {"out": out}, StudyOptions(overwrite=overwrite, quiet=quiet))
    chosen = _resumed(entries, file.allow_code) if resume else _with_folder(Config.of(entries))
    whereabouts(chosen.data.name, chosen.data_dir)

    from comity.commands._terminal import Terminal, announce, interruptible, report_divergence

    console = Terminal(highlight=False)
    if not quiet:
        announce(console, chosen.data.name)

    from comity.commands._progress import Progress, summary
    from comity.engine import run

    callbacks = [] if quiet else [Progress(console)]
    with interruptible(console, "this round") as stopped:
        done = run(chosen, resume=resume, overwrite=overwrite, callbacks=callbacks, stop=stopped)
    if not done.done:
        console.print(
            f"Stopped after round {done.server.round} of {chosen.last_round}. Resume with\n"
            f"  comity run --resume --out {chosen.out}" + (" --allow-code" if code_in(chosen.plain()) else ""),
            markup=False,
        )
        return 130
    if not quiet:
        summary(console, done)
    return report_divergence({done.title: done.result})


def _with_folder(config: Config) -> Config:
    if config.out is not None:
        return config
    words = (config.method, config.rule, config.data, f"s{config.seed}")
    return config.with_(out=Path("runs") / "-".join(slug(str(word)) for word in words))


def _resumed(entries: Entries, allow_code: bool) -> Config:
    """The configuration in the run folder; options given in addition must agree, unless they do not affect results."""
    from comity.results import RunFolder, other_configuration

    folder = Path(str(entries.get("out") or _with_folder(Config.of(entries)).out))
    if not RunFolder(folder).started:
        raise ComityError(f"--resume: {folder} holds no run to resume")
    options = RunFolder(folder).options()
    if not allow_code:
        reject_code(options, str(folder))
    before = Config.of(options)
    config = Config.of(Overlay(before.plain(), entries, {"out": folder}))
    if different := before.differences(config):
        raise other_configuration(folder, different)
    return config


COMMAND = Command(run, RUN_OPTIONS, order=1)
