"""New rows, samples and images through ``comity predict`` and the estimator."""

import csv
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comity import ComityError, load_model, run
from comity.__main__ import main
from comity.data import Dataset
from comity.deploy import ClientModel
from comity.deploy.prediction import _cell


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_rows_that_do_not_fit_have_an_empty_prediction(
    heart: Path, new_rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = new_rows.with_name("predictions.csv")
    assert main(["predict", str(heart), str(new_rows), "-o", str(output), "--id", "hospital"]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "comity: row 3: column sex: unknown value unknown; known: female, male",
        "comity: row 4: column age: =1+1 is no number",
    ]
    assert "3 of 5 rows predicted" in said.out
    rows = rows_of(output)
    assert list(rows[0]) == ["row", "hospital", "prediction", "p_no", "p_yes", "problem"]
    assert [row["row"] for row in rows] == list("12345")
    assert [bool(row["prediction"]) for row in rows] == [True, True, False, False, True]
    assert [float(row["p_no"]) + float(row["p_yes"]) for row in rows if row["prediction"]] == pytest.approx([1] * 3)
    model = load_model(heart)
    fine = [row for row, made in zip(rows_of(new_rows), rows, strict=True) if made["prediction"]]
    columns = {name: [row[name] for row in fine] for name in fine[0]}
    assert model.predict(columns).tolist() == [row["prediction"] for row in rows if row["prediction"]]


def test_strict_stops_and_writes_nothing(heart: Path, new_rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = new_rows.with_name("predictions.csv")
    assert main(["predict", str(heart), str(new_rows), "-o", str(output), "--strict"]) == 2
    assert (
        capsys.readouterr().err
        == f"comity: {new_rows}, row 3: column sex: unknown value unknown; known: female, male\n"
    )
    assert not output.exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("age,sex\n50,male\n", "the table lacks chest_pain"),
        (None, "No such file"),
        ("\0", "not a text file"),
    ],
    ids=["columns", "missing", "binary"],
)
def test_a_file_that_cannot_be_predicted_is_one_line(
    heart: Path, tmp_path: Path, content: str | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "new.csv").write_text(content)
    assert main(["predict", str(heart), str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv")]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out.csv").exists()


def test_the_input_is_not_replaced(heart: Path, new_rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(heart), str(new_rows), "-o", str(new_rows)]) == 2
    assert "is the file that is read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "cell"), [("=1+1", "'=1+1"), ("@sum", "'@sum"), ("-5", "-5"), ("+4.1e3", "+4.1e3"), ("no", "no"), (7, 7)]
)
def test_no_cell_is_a_formula(text: object, cell: object) -> None:
    assert _cell(text) == cell


def test_a_frame_a_mapping_and_an_array_give_the_same(heart: Path) -> None:
    import pandas

    model = load_model(heart)
    assert model.schema is not None
    columns = {
        name: [value.categories[0] if value.categories else 3.5] * 4 for name, value in model.schema.columns.items()
    }
    columns["age"] = [50, None, 61, 44]
    frame = pandas.DataFrame(columns).sample(frac=1, axis=1, random_state=0)
    features, problems = model.encode(columns)
    assert not problems
    assert features.shape == (4, model.n_features_in_) == (4, len(model.feature_names_in_))
    expected = model.predict_proba(columns)
    assert np.array_equal(model.predict_proba(frame), expected)
    assert np.array_equal(model.predict_proba(features), expected)
    each = model.expert_probabilities(frame)
    assert each.shape == (2, 4, 2)
    assert np.tensordot(model.weights, each, 1) == pytest.approx(expected)


def test_balanced_accuracy_decides_by_what_the_mixture_expects(heart: Path) -> None:
    model = load_model(heart)
    shares = model.expected_shares
    assert shares is not None
    probabilities = np.stack([1 - (p := np.linspace(0.01, 0.99, 99)), p], 1)
    assert model.decide(probabilities).tolist() == (p / shares[1] > (1 - p) / shares[0]).astype(int).tolist()


def test_numbers_of_classes_are_numbers(numbers: Path) -> None:
    model = load_model(numbers)
    assert model.classes_.tolist() == [0, 1]
    assert not hasattr(model, "feature_names_in_")
    assert model.schema is None
    assert repr(model) == "ClientModel(a, FedAvg + Mean, 2 classes)"
    assert "<table>" in model._repr_html_()
    assert model.card.startswith("# Model of a\n")
    assert model.card == (numbers / "card.md").read_text()


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (np.zeros((2, 4)), "X has 4 features, but ClientModel is expecting 3"),
        (np.zeros(3), "Reshape your data"),
        (np.zeros((0, 3)), "0 sample"),
        (np.full((2, 3), np.inf), "not finite"),
        (np.array([["a", "b", "c"]]), "type"),
        ({"age": [1]}, "not trained on a table"),
    ],
)
def test_samples_that_do_not_fit_are_a_value_error(numbers: Path, x: object, why: str) -> None:
    model = load_model(numbers)
    with pytest.raises(ValueError, match=why):
        model.predict(x)
    with pytest.raises(ComityError):
        model.predict_proba(x)


def trained(data: object, out: Path) -> ClientModel:
    run(rounds=1, workers=1, data=data, clients=2, reference="none", out=out)
    return load_model(out / "models" / "000")


def test_series_from_an_npz_file(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, 2, 16)).astype(np.float32) + 3, random.integers(0, 3, 40)
    model = trained(Dataset("series", x, y), tmp_path / "x")
    np.savez(tmp_path / "new.npz", x=x[:6])
    assert (
        main(["predict", str(tmp_path / "x/models/000"), str(tmp_path / "new.npz"), "-o", str(tmp_path / "p.csv")]) == 0
    )
    assert [row["prediction"] for row in rows_of(tmp_path / "p.csv")] == model.predict(x[:6]).astype(str).tolist()


def test_images_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (24, 16, 16), dtype=np.uint8), random.integers(0, 2, 24)
    model = trained(Dataset("images", x, y, class_names=("cat", "dog")), tmp_path / "x")
    folder = tmp_path / "new" / "ward"
    folder.mkdir(parents=True)
    for name, image in (("a.png", x[0]), ("c.png", np.dstack([x[1]] * 3)), ("d.png", np.kron(x[2], np.ones((2, 2))))):
        Image.fromarray(image.astype(np.uint8)).save(folder / name)
    (folder / "b.png").write_bytes(b"no image")
    assert main(["predict", str(tmp_path / "x/models/000"), str(tmp_path / "new"), "-o", str(tmp_path / "p.csv")]) == 0
    rows = rows_of(tmp_path / "p.csv")
    assert [row["file"] for row in rows] == ["ward/a.png", "ward/b.png", "ward/c.png", "ward/d.png"]
    assert rows[0]["prediction"] == model.predict(x[:1])[0]
    assert rows[1]["prediction"] == rows[2]["prediction"] == ""
    assert "colour" in rows[2]["problem"]
    assert rows[3]["prediction"] in ("cat", "dog")  # scaled to the model's size
    assert "row 2: corrupt" in capsys.readouterr().err
    with pytest.raises(ComityError, match="the model takes uint8 pixels"):
        model.predict(x[:1].astype(np.float32))


@pytest.mark.slow
def test_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands are run one after another, with its own table."""
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "predict.md").read_text()
    new, predictions = re.findall(r"```csv\n(.*?)```", text, re.DOTALL)
    Path("new.csv").write_text(new)
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ comity "):
                assert main(shlex.split(line)[2:]) == 0
                said = "".join(capsys.readouterr())
            else:
                assert line in said
    found, shown = rows_of(Path("predictions.csv")), list(csv.DictReader(predictions.splitlines()))
    assert [list(row.values())[:3] for row in found] == [list(row.values())[:3] for row in shown]
    assert Path("cleveland.onnx").exists()
