"""The cells of a study: the right ones, each once, with names that say what varies."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from study_parts import BRINGS_A_RULE, OTHER, SMALL

from comity import ComityError
from comity.engine import RunPlan
from comity.studies import study
from comity.studies._grid import Names, at_scale, expand, local_of, override, seeds_of
from helpers import Options


@pytest.mark.parametrize(
    ("entries", "cells"),
    [
        (
            {"method": "FedAvg,FedRep", "rule": ["Mean", OTHER], "seeds": 2},  # every method with every rule and seed
            [f"{m} {r} {seed}" for m in ("FedAvg", "FedRep") for r in ("Mean", OTHER) for seed in (0, 1)],
        ),
        (
            {"method": ["Local", BRINGS_A_RULE, "FedAvg"], "rule": ["Mean", OTHER]},  # two have no rule to choose
            ["Local Mean 0", f"{BRINGS_A_RULE} Mean 0", "FedAvg Mean 0", f"FedAvg {OTHER} 0"],
        ),
        (
            {"method": [{"name": "FedAvg", "rule": OTHER}, "FedRep", {"name": "Ditto", "rule": ["Mean", OTHER]}]},
            [f"FedAvg {OTHER} 0", "FedRep Mean 0", "Ditto Mean 0", f"Ditto {OTHER} 0"],
        ),
    ],
)
def test_a_grid_has_each_cell_once(entries: Options, cells: list[str]) -> None:
    assert [f"{c.method} {c.rule} {c.seed}" for c in expand(entries)] == cells


def test_options_go_to_the_components_that_know_them() -> None:
    entries = {"method": ["FedAvg", "Ditto", {"name": "FedProx", "mu": 0.3}], "method.lam": "0.25", "rounds": 7}
    cells = expand(entries)
    assert [dict(c.method.options).get("lam") for c in cells] == [None, 0.25, None]
    assert cells[2].method.options["mu"] == 0.3
    assert {c.rounds for c in cells} == {7}
    with pytest.raises(ComityError, match="unknown option 'lamm' of a method; did you mean lam"):
        expand(entries | {"method.lamm": 1})


def test_sweeps_make_a_product_and_what_they_do_not_touch_runs_once() -> None:
    sweep = {"rule.strength": [0.1, 0.9], "participation": [0.5, 1.0]}
    cells = expand({"method": "FedAvg", "rule": ["Mean", OTHER], "sweep": sweep})
    told = [(c.participation, str(c.rule), c.rule.options.get("strength")) for c in cells]
    first = [(share, *rule) for share in (0.5, 1.0) for rule in (("Mean", None), (OTHER, 0.1))]
    assert told == [*first, (0.5, OTHER, 0.9), (1.0, OTHER, 0.9)]
    by_name = expand({"sweep": {"partition": ["iid", {"name": "dirichlet", "alpha": 3}]}, "partition.alpha": 0.7})
    assert [c.partition.name for c in by_name] == ["iid", "dirichlet"]
    assert by_name[1].partition.options["alpha"] == 3
    (kept,) = expand({"sweep": {"partition": ["dirichlet"]}, "partition.alpha": 0.7})
    assert kept.partition.options["alpha"] == 0.7


def test_a_grid_of_grids_is_their_union() -> None:
    grid = [{"method": "FedAvg"}, {"method": "FedRep", "rule": ["Mean", OTHER], "sweep": {"lr": [0.1, 0.2]}}]
    cells = expand({"grid": grid, "lr": 0.1})
    both = [("FedRep", rule, lr) for lr in (0.1, 0.2) for rule in ("Mean", OTHER)]
    assert [(str(c.method), str(c.rule), c.lr) for c in cells] == [("FedAvg", "Mean", 0.1), *both]


def test_scales_and_layers() -> None:
    entries = {"rounds": 1, "rule": OTHER, "rule.strength": 1, "desk": {"lr": 0.5}}
    entries["paper"] = {"rounds": 500, "rule": "Mean"}
    assert at_scale(entries, None) == {"rounds": 1, "rule": OTHER, "rule.strength": 1, "lr": 0.5}
    assert at_scale(entries, "paper") == {"rounds": 500, "rule": "Mean"}  # the option went with its rule
    with pytest.raises(ComityError, match="unknown scale 'des'; did you mean desk"):
        at_scale(entries, "des")
    with pytest.raises(ComityError, match="no scales"):
        at_scale({"rounds": 1}, "paper")


def test_what_is_given_beside_a_file_wins_over_its_grids_and_sweeps_too() -> None:
    sweep = {"data": ["mnist", "digits"], "lr": [0.1, 0.2], "model.widths": [1]}
    methods = ["FedRep", {"name": "Ditto", "lam": 1, "rule": OTHER}]
    grid = [{"method": "FedAvg", "lr": 1}, {"sweep": sweep}]
    entries = {"grid": grid, "sweep": sweep, "method": methods, "rounds": 1}
    given, kept = {"data": "digits", "model": "cnn"}, {"sweep": {"lr": [0.1, 0.2]}}
    assert override(entries, given) == entries | kept | {"grid": [grid[0], kept]} | given
    over = override(entries, {"rule": "Mean", "sweep": {"clients": [3]}, "lr": 7})
    assert over["grid"] == [{"method": "FedAvg"}, {}]
    assert over["sweep"] == {"clients": [3]}
    assert over["method"] == ["FedRep", {"name": "Ditto", "lam": 1}]


@pytest.mark.parametrize(
    ("given", "seeds"), [(3, [0, 1, 2]), ("2", [0, 1]), ("0,4,7", [0, 4, 7]), ("5,", [5]), ([3, 1], [3, 1])]
)
def test_seeds(given: Any, seeds: list[int]) -> None:
    assert seeds_of({"seeds": given}) == seeds
    assert seeds_of({"seed": 4}) == [4]


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"sweep": ["lr"]}, "sweep must hold `option: value` lines"),
        ({"sweep": {"lr": 0.1}}, "sweep lr must be a list of values, got 0.1"),
        ({"grid": {"lr": 0.1}}, "grid must be a list of entries"),
        ({"desk": 3}, "desk must hold"),
        ({"tune": "rule.c"}, "tune must hold"),
        ({"sweeps": {"lr": [1]}}, "unknown option 'sweeps'"),
        ({"method": []}, "method must name at least one"),
        ({"tune": {"rule.c": []}, "rule": "ConFREE"}, "tune rule.c must be low:high"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(entries: Options, told: str, tmp_path: Path) -> None:
    with pytest.raises(ComityError, match=re.escape(told)):
        study(entries, out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_names_say_what_varies_and_nothing_else() -> None:
    entries = {"method": [{"name": "Ditto", "lam": 0.5}, {"name": "Ditto", "lam": 1}], "rule": ["Mean", OTHER]}
    cells = expand(
        entries | {"sweep": {"partition": ["iid", "dirichlet"], "model.widths": [[8], [8, 4]]}, "model": "mlp"}
    )
    names = Names([*map(local_of, cells), *cells])
    assert names.slug(cells[0]) == "ditto-mean-lam0.5-iid-widths8-s0"
    assert names.title(cells[0]) == "Ditto (lam=0.5) + Mean, iid, widths=8, seed 0"
    assert names.slug(local_of(cells[0])) == "local-iid-widths8-s0"
    slugs = [names.slug(cell) for cell in cells]
    assert len(set(slugs)) == len(slugs) == 16


def test_a_seed_has_one_partition_and_one_initial_model_whatever_the_method() -> None:
    options = {key: value for key, value in SMALL.items() if key != "jobs"}
    entries = options | {"data": "digits", "method": ["Local", "FedAvg", "FedRep", "Ditto"], "rule": ["Mean", OTHER]}
    sites = [RunPlan(cell).site for cell in expand(entries | {"seeds": 2})]
    first = {seed: next(site for site in sites if site.seed == seed) for seed in (0, 1)}
    assert not torch.equal(first[0].initial, first[1].initial)
    for site in sites:
        assert torch.equal(site.initial, first[site.seed].initial)
        for client, other in zip(site.federation.clients, first[site.seed].federation.clients, strict=True):
            assert torch.equal(client.train.x, other.train.x)
            assert torch.equal(client.test.x, other.test.x)
