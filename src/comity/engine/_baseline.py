"""The local baseline of a run: each client trains by itself under the same conditions."""

import warnings
from typing import TYPE_CHECKING, Literal, NamedTuple

from comity._errors import ComityError
from comity._labels import slug
from comity._write import inside
from comity.data import Federation
from comity.engine._checkpoint import SavedStates
from comity.engine._local_models import LocalModels
from comity.metrics import OWN
from comity.results import Columns, RunFolder, schema

if TYPE_CHECKING:
    from comity.engine._plan import RunPlan
    from comity.engine._run import Run, Runner


class Baseline(NamedTuple):
    columns: Columns
    """The last evaluation of the baseline."""
    models: LocalModels | None
    """``None`` if the models were not kept."""


def train_baseline(
    runner: "Runner", run: "Run", on: Literal["all", "train"], resume: bool, repeats: Baseline | None = None
) -> Baseline | None:
    """Train a local baseline under the same conditions as a run; ``None`` if training was stopped.

    ``repeats``: the baseline that this one repeats with another training seed and is compared with. The baseline is
    cached beside the run folder for the same data and trainer; if another process is training it, wait for it. A
    federation, link or class given in Python is not part of the configuration, so such a baseline is kept in the run's
    own folder.
    """
    plan, out = run.plan.local_baseline(on, repeat=repeats is not None), run.config.out
    if out is None:
        done = runner.perform(_assemble(runner, plan, run, repeats), False, False)
        return Baseline(done.columns, LocalModels(done.site, done.server.link.states())) if done.done else None
    name = slug(f"{plan.config.key}-{run.federation.fingerprint}-{plan.trainer}")
    folder = RunFolder(inside(out if plan.is_given else out.parent, f"{schema.LOCAL_CACHE}/{name}"))
    with folder.locked(runner.stop) as held:
        if not held:
            return None
        if plan.is_given and not resume:
            folder.clear()
        return _in_folder(runner, run, plan.at(folder.path), folder, repeats)


def _assemble(runner: "Runner", plan: "RunPlan", run: "Run", repeats: Baseline | None) -> "Run":
    assembled = runner.assemble(plan, run)
    if repeats is not None:
        assembled.compare_with(repeats)
    return assembled


def _in_folder(
    runner: "Runner", run: "Run", plan: "RunPlan", folder: RunFolder, repeats: Baseline | None, again: bool = False
) -> Baseline | None:
    """The baseline in a folder, trained to its end; retrained from the start if its files are damaged."""
    trained = None if folder.finished else _assemble(runner, plan, run, repeats)
    try:
        if trained is not None and not runner.perform(trained, True, False).done:
            return None
        return read_baseline(folder, plan, run.federation)
    except ComityError as error:
        if again or (trained is not None and trained.server.round):  # its rounds failed, not its files
            raise
        warnings.warn_explicit(f"{error} (this Local is trained again)", UserWarning, "comity", 1)
        folder.clear()  # only a cache
        return _in_folder(runner, run, plan, folder, repeats, again=True)


def read_baseline(folder: RunFolder, plan: "RunPlan", federation: Federation) -> Baseline:
    """Read a baseline from the folder of a finished run with the same clients and data."""
    result, data = folder.result(), folder.info().data
    if not 0 < len(result.clients.get("client", ())) == len(result.clients.get(OWN.key, ())):
        raise ComityError(f"reference {folder.path} holds no accuracy of each client; run it again")
    count = len(result.clients["client"]) + len(result.malicious)
    if count != len(federation):
        raise ComityError(f"reference {folder.path} has {count} clients, this run {len(federation)}")
    if data and data != federation.fingerprint:
        raise ComityError(f"reference {folder.path} was trained on other data than this run's {federation.name}")
    if not (checkpoint := folder / schema.CHECKPOINT).exists():
        return Baseline(result.clients, None)
    size = plan.site.model().read("personal").numel()
    return Baseline(result.clients, LocalModels(plan.site, SavedStates(checkpoint, range(count), size)))
