"""Texts of the page beside the verdict: effects of guards and rules, progress of unfinished runs, and notes.

Numbers are those of the table, by the metric that decides; positive differences are improvements.
"""

from collections.abc import Sequence

from comity._errors import one_line
from comity._words import counted, listed
from comity.compare import Cell, ClientRow, Difference, LoadedStudy, Table, holm, interval, points


def effects(study: LoadedStudy) -> list[str]:
    """One sentence on the effect of each guard and rule, after the number of rules with a significant effect."""
    compared = [cell for cell in study.cells if cell.difference is not None]
    several = len(study.settings) > 1
    guards = [sentence for cell in study.cells if (sentence := _guard(cell, several))]
    return [*_tally(compared), *guards, *(_rule(cell, several) for cell in compared)]


def _where(cell: Cell, several: bool) -> str:
    return f" at {cell.setting.label}" if several and cell.setting.label else ""


def _effect(who: str, what: str, cell: Cell, difference: Difference) -> str:
    verb = "worsens" if difference.mean < 0 else "improves"
    size = points(cell, abs(difference.mean), 2) + interval(difference, 2)
    caveat = {"noise": ", not significantly", "unknown": " in one seed"}.get(difference.direction, "")
    return f"{who} {verb} {what} by {size}{caveat}"


def _guard(cell: Cell, several: bool) -> str:
    plain = cell.without_guard
    difference = None if plain is None else cell.against(plain)
    if plain is None or difference is None:
        return ""
    effect = _effect(f"The guard {cell.options['guard']}", f"{plain.label}{_where(cell, several)}", cell, difference)
    worse, kept = (len(each.with_state("worse")) for each in (plain, cell))
    return f"{effect}; {worse} of {counted(len(cell.clients), 'client')} are worse without it, {kept} with it."


def _rule(cell: Cell, several: bool) -> str:
    assert cell.difference is not None
    return f"{_effect(cell.rule_label, f'{cell.method_label}{_where(cell, several)}', cell, cell.difference)}."


def _tally(compared: Sequence[Cell]) -> list[str]:
    """Number of rules that differ significantly from their base, corrected for the number of comparisons."""
    p_values = [cell.difference.p_value for cell in compared if cell.difference and cell.difference.p_value is not None]
    if len(p_values) < 2:
        return []
    bases = listed(dict.fromkeys(cell.base.rule_label for cell in compared if cell.base is not None))
    return [
        f"Of {len(p_values)} comparisons with {bases}, {sum(holm(p_values))} are significant after Holm correction."
    ]


def client_name(row: ClientRow) -> str:
    """“Basel”, or “client 6”, with the seed if each seed has its own clients."""
    name = f"client {row.client}" if row.name in ("", str(row.client)) else one_line(row.name, 40)
    return name if row.seed is None else f"{name}, seed {row.seed}"


def opened_at(study: LoadedStudy) -> Cell:
    """The configuration that the page opens with: the recommended one, or the one with most rounds."""
    if study.verdict.cell is not None:
        return study.verdict.cell
    rivals = [cell for cell in study.cells if not cell.local] or study.cells
    return max(rivals, key=lambda cell: max(run.rounds_done for run in cell.runs.values()))


def progress(study: LoadedStudy) -> str:
    """Progress of the study before any of its runs is finished; empty afterwards."""
    if any(run.finished and not run.local for run in study.runs):
        return ""
    cell = opened_at(study)
    if cell.local:
        return "Only local training was run; there is no federated configuration to compare it with yet."
    run = max(cell.runs.values(), key=lambda run: run.rounds_done)
    return f"No run is finished yet; {cell.label} has done {run.rounds_done} of {run.options['rounds']} rounds."


def notes(study: LoadedStudy, table: Table) -> list[str]:
    """Caveats that a reader needs to judge the numbers."""
    found = list(table.remarks)
    if failures := sum(len(record.failed) for run in study.runs for record in run.records):
        found.append(f"{failures} replies of clients failed or were not finite and were left out; see the runs below.")
    attackers = {len(run.result.malicious) for run in study.runs if run.result and run.result.malicious}
    if attackers:
        many = listed(map(str, sorted(attackers)))
        found.append(f"{many} clients are malicious; their own accuracy is not part of any mean.")
    found += [f"{title} failed: {error}" for title, error in study.failed.items()]
    if study.doubles:
        found.append(f"{study.doubles} run folders contain the same run as another folder; each run is counted once.")
    return found
