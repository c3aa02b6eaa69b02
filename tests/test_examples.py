"""Every example at every scale is a study that could start: each cell's options are known, each method builds."""

import pytest

from comity.config import read_yaml
from comity.engine import RunPlan
from comity.studies import examples
from comity.studies._grid import SCALES, at_scale, expand, seeds_of


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
