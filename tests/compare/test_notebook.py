"""What a notebook shows of runs and studies."""

import pytest

import comity
from comity.compare import LoadedStudy


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> LoadedStudy:
    out = tmp_path_factory.mktemp("study") / "s"
    return comity.study(data="heart", rule=["Mean", "ConFREE"], rounds=2, seeds=3, jobs=1, out=out)


def test_a_study_has_its_verdict_and_tables(study: LoadedStudy) -> None:
    page = study._repr_html_()
    assert page.startswith(f"<h3>{study.verdict.title}</h3>")
    assert study.verdict.evidence.split("(")[0] in page
    assert page.count("<table>") == 2
    assert all(name in page for name in ("Cleveland", "Hungary", "Long Beach", "Switzerland"))


def test_frames_have_names_and_the_table_s_numbers(study: LoadedStudy) -> None:
    pytest.importorskip("pandas")
    table, cell = study.table(), study.verdict.cell
    assert cell is not None
    frame = table.frame()
    assert ("FedAvg", "ConFREE") in frame.index
    assert ("Local", "") in frame.index
    value = next(line for line in table.rows if line.rule == "ConFREE").entries[table.columns[0].name].value
    assert frame.loc[("FedAvg", "ConFREE"), table.columns[0].name] == pytest.approx(value)
    clients = cell.client_table.frame().droplevel("configuration")
    assert clients["state"].to_dict() == {row.name: row.state for row in cell.clients}


def test_the_picture_of_gains(study: LoadedStudy) -> None:
    pytest.importorskip("matplotlib")
    figure = study.plot.gain("FedAvg + ConFREE")
    assert figure._repr_png_().startswith(b"\x89PNG")
    labels = {text.get_text() for text in figure.axes[0].get_yticklabels()}
    assert labels == {"Cleveland", "Hungary", "Long Beach", "Switzerland"}
    with pytest.raises(comity.ComityError, match="did you mean FedAvg"):
        study.plot.gain("FedAvg + ConFRE")


def test_a_run_in_short() -> None:
    done = comity.run(data="heart", rounds=1, reference="none")
    assert repr(done) == "Run(FedAvg + Mean, heart, 4 clients, round 1 of 1)"
    assert done.clients is None
    assert done._repr_html_() == "Run(FedAvg + Mean, heart, 4 clients, round 1 of 1)"
