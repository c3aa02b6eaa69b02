"""Every example at every scale is a study that could start: each cell's options are known, each method builds."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comity._errors import ComityError
from comity.config import Config, read_yaml
from comity.engine import RunPlan
from comity.studies import Show, dry_run, examples, study
from comity.studies._grid import SCALES, at_scale, expand, override, seeds_of
from comity.studies._papers import published


@pytest.mark.parametrize("name", examples())
def test_each_cell_is_a_configuration_that_builds(name: str) -> None:
    entries = read_yaml(examples()[name])
    assert entries["about"].strip()
    for scale in [scale for scale in SCALES if scale in entries] or (None,):
        cells = expand(at_scale(entries, scale))
        assert len({cell.key for cell in cells}) == len(cells)
        for cell in cells:
            without_data = cell.with_(
                clients=cell.clients or 2, model=cell.model or "mlp", metric="accuracy", device="cpu"
            )
            assert RunPlan(without_data).rule
            if cell.partition is not None:  # of some data sets each client has its own
                cell.partition.build()


@pytest.mark.parametrize("name", examples())
def test_a_desk_study_has_the_seeds_to_tell_something(name: str) -> None:
    assert len(seeds_of(at_scale(read_yaml(examples()[name]), None))) >= 8


def cells_of(name: str, scale: str, options: Mapping[str, Any]) -> list[Config]:
    return expand(override(at_scale(read_yaml(examples()[name]), scale), options))


def test_only_selects_blocks_with_their_own_nets() -> None:
    nets = {"fashion-mnist": "mlp", "cifar10": "cnn-fedpg", "cifar100": "nf-resnet18"}
    every = cells_of("fedpg-table1", "paper", {})
    assert Counter((str(cell.data), str(cell.model)) for cell in every) == dict.fromkeys(nets.items(), 16 * 5)
    for data, net in nets.items():
        chosen = cells_of("fedpg-table1", "paper", {"only": {"data": [data]}})
        assert chosen == [cell for cell in every if str(cell.data) == data]
        assert len(chosen) == 80
        assert {str(cell.model) for cell in chosen} == {net}
    two = cells_of(
        "fedpg-table1", "paper", {"only": {"data": "CIFAR_10,cifar100", "method": "FedPG", "method.gamma": 0}}
    )
    assert Counter(str(cell.data) for cell in two) == {"cifar10": 5, "cifar100": 5}
    table2 = cells_of("confree-table2", "paper", {"only": {"participation": ["0.30"], "clients": [60]}})
    assert {(cell.participation, cell.clients) for cell in table2} == {(0.3, 60)}
    assert len(table2) == 6 * 2 * 2 * 3


def c_by_method(name: str, **only: Any) -> dict[str, float]:
    cells = cells_of(name, "paper", {"only": only})
    return {str(cell.method): cell.rule.options["c"] for cell in cells if str(cell.rule) == "ConFREE"}


def test_confree_has_the_papers_c_where_the_paper_reports_it() -> None:
    first = {"APFL": 0.4, "FedROD": 0.6, "FedRep": 0.1, "FedCP": 0.4, "FedALA": 0.6, "FedPAC": 0.2}
    second = {"APFL": 0.3, "FedROD": 0.8, "FedRep": 0.1, "FedCP": 0.6, "FedALA": 0.8, "FedPAC": 0.3}
    for share, known in ((0.3, first), (0.6, second)):
        rows = [row for row in published("confree-table3") if row.options["participation"] == str(share)]
        for method, c in known.items():
            own = {
                row.options.get("rule.c"): row.results["accuracy"] for row in rows if row.options["method"] == method
            }
            assert own[str(c)] == max(own.values())
        assert c_by_method("confree-table2", data="flowers102", participation=share) == known
    assert c_by_method("confree-table2", data="flowers102", participation=1) == second
    assert set(c_by_method("confree-table2", data="cifar100").values()) == {0.5}
    for partition in ("pathological", "dirichlet"):
        found = c_by_method("confree-table1", data="flowers102", partition=partition)
        assert found == second | {"LG-FedAvg": 0.5, "Per-FedAvg": 0.5}
    assert set(c_by_method("confree-table1", data="cifar10,cifar100,tiny-imagenet").values()) == {0.5}
    for name in ("confree-table1", "confree-table2"):  # a rule that is given replaces those of every method
        assert {str(cell.rule) for cell in cells_of(name, "paper", {"rule": "CALM"})} == {"CALM"}
        assert {cell.rule.options.get("c") for cell in cells_of(name, "paper", {"rule.c": 0.7})} == {None, 0.7}


@pytest.mark.parametrize("name", [name for name in examples() if name.startswith("fedpg")])
def test_fedpg_chooses_rates_by_what_is_compared(name: str) -> None:
    entries = read_yaml(examples()[name])
    by = {scale: at_scale(entries, scale)["tune_by"] for scale in ("desk", "paper")}
    assert by["desk"] == by["paper"] != "accuracy"


def test_fedpgs_figure_has_several_values_of_s() -> None:
    for scale in ("desk", "paper"):
        cells = cells_of("fedpg-figure1", scale, {"only": {"method": "S-FedPG"}})
        assert {cell.method.options["s"] for cell in cells} == {0, 1, 4}


def test_fedora_has_as_many_tests_as_the_slides_imply() -> None:
    (cell, *_) = cells_of("fedora-shifts", "paper", {"only": {"data": "cifar10"}})
    assert cell.partition is not None
    options = cell.partition.options
    assert (cell.clients, options["groups"]) == (10, 5)  # clients k and k + 5 are similar
    assert options["samples_per_client"] * cell.test_share == pytest.approx(128)
    (cell, *_) = cells_of("fedora-four", "paper", {})
    assert cell.partition is not None
    assert cell.partition.options["samples_per_client"] * cell.test_share == pytest.approx(2000, abs=0.1)


def test_one_data_set_cannot_replace_those_of_all_blocks() -> None:
    for name in ("fedpg-table1", "confree-table1", "fedcalm-table6", "fedora-shifts"):
        with pytest.raises(ComityError, match=r"--only data=NAME"):
            cells_of(name, "paper", {"data": "fashion-mnist"})
    assert {str(cell.data) for cell in cells_of("fedora-balanced", "paper", {"data": "cifar10"})} == {"cifar10"}


def test_a_selection_without_cells_says_what_there_is() -> None:
    with pytest.raises(ComityError, match="only data=mnist selects no run; the runs have data fashion-mnist, cifar10"):
        cells_of("fedpg-table1", "paper", {"only": {"data": "mnist"}})
    with pytest.raises(ComityError, match=r"only data\.sise=3 selects no run; no run has the option data\.sise"):
        cells_of("fedpg-table1", "paper", {"only": {"data.sise": 3}})


@pytest.mark.parametrize("name", [name for name in examples() if name.startswith("fedora")])
def test_pixels_stay_as_the_paper_has_them_whichever_data_set_is_chosen(name: str) -> None:
    for scale in ("desk", "paper"):
        files = [cell for cell in cells_of(name, scale, {}) if str(cell.data) != "digits"]
        assert all(cell.data.options["centred"] is False for cell in files)
    assert all(cell.data.options["centred"] is False for cell in cells_of(name, "desk", {"data": "mnist"}))
    assert all(cell.data.options["centred"] for cell in cells_of(name, "desk", {"data": "mnist", "data.centred": True}))


def test_every_net_of_fedcalm_has_pfllibs_stem() -> None:
    for name in ("fedcalm-table6", "fedcalm-figure5", "fedcalm-table8"):
        models = [cell.model for cell in cells_of(name, "paper", {}) if cell.model]
        nets = [model.options for model in models if str(model) != "cnn"]
        assert {(net["stem"], net["running"]) for net in nets} == {("imagenet", False)}


def test_a_missing_data_set_skips_its_block(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", x=np.zeros((60, 8, 8), np.uint8), y=np.arange(60) % 10)
    small = {"rounds": 1, "clients": 2, "model": "mlp", "jobs": 1, "data_dir": tmp_path, "control": "none"}
    lines: list[str] = []
    show = Show()
    show.say = lines.append  # type: ignore[method-assign]
    entries = {"grid": [{"data": "mnist"}, {"data": "cifar100", "model": "lenet5"}], **small}
    dry_run(entries, out=tmp_path / "x", show=show)
    assert lines[0].startswith("Skipped 1 cell: data cifar100: looked for cifar100.npz")
    assert not (tmp_path / "x").exists()
    done = study(entries, out=tmp_path / "x")
    assert {run.options["data"]["name"] for run in done.runs} == {"mnist"}
    with pytest.raises(ComityError, match="data cifar100: looked for"):
        dry_run(entries, out=tmp_path / "x", only={"data": "cifar100"})
    with pytest.raises(ComityError, match="unknown data set 'minst'"):
        dry_run(entries | {"grid": [{"data": "mnist"}, {"data": "minst"}]}, out=tmp_path / "y")


def test_the_decisive_experiment_has_the_papers_setting_and_four_arms() -> None:
    cells = cells_of("confree-decisive", "paper", {})
    joined = [cell for cell in cells if not cell.is_local]
    assert len(cells) - len(joined) == 8
    arms = Counter((str(cell.method), str(cell.rule), cell.rule.options.get("c")) for cell in joined)
    wanted = [
        (method, rule, None if rule == "Mean" else c)
        for method, c in (("APFL", 0.4), ("FedALA", 0.6))
        for rule in ("Mean", "ConFREE", "ConFREE-length", "ConFREE-released")
    ]
    assert arms == dict.fromkeys(wanted, 8)
    apfl = [cell.method.options for cell in cells if str(cell.method) == "APFL"]
    assert {(options["form"], options["alpha"]) for options in apfl} == {("pfllib", 1)}
    for cell in cells:
        assert (str(cell.data), cell.data.options["size"], cell.clients, cell.participation) == (
            "flowers102",
            32,
            60,
            0.3,
        )
        assert (str(cell.model), cell.lr, cell.batch_size, cell.rounds, cell.epochs) == ("cnn", 0.005, 10, 500, 1)
        assert cell.partition is not None
        assert cell.partition.options["self_balancing"]
        assert cell.partition.options["alpha"] == 0.1
