"""Natural federations by name: their table, their files, their options and their splits in time."""

import gzip
import hashlib
import re
import subprocess
import sys
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import comity
from comity import ComityError
from comity.__main__ import main
from comity._natural import EMBEDDED, NaturalOptions
from comity.data import Dataset, NaturalFederation, describe, federate, fingerprint, load, natural
from comity.data.federation import split_block, split_last
from comity.data.sources.columns import read_columns
from comity.data.sources.natural import chosen

BANDS = {name: each.thresholds for name, each in natural().items() if each.thresholds}
SHIPPED = [name for name, each in natural().items() if each.embedded]


def here(name: str) -> NaturalFederation:
    found = natural()[name]
    if not found.available:
        pytest.skip(f"{found.file} is neither embedded nor in COMITY_DATA/natural")
    return found


# The table and the files.


def test_nineteen_federations_of_which_three_have_thresholds() -> None:
    assert len(natural()) == 19
    assert list(BANDS) == ["ilea_schools", "parkinsons", "traffic"]
    assert SHIPPED == ["air", "covid", "parkinsons", "shakespeare", "spoken_digits"]
    for name, each in natural().items():
        assert each.name == name
        assert each.file.split(".")[0] == name
        assert all((each.about, each.licence, each.cite, each.source, each.recipe, each.split))
        assert len(each.sha256) == 64
        assert bool(each.format) == (not each.embedded)
        assert bool(each.columns) == (not each.embedded and not each.file.endswith(".npz"))


def test_embedded_files_are_small_licensed_and_all_in_the_table() -> None:
    notice = (EMBEDDED / "README.md").read_text()
    files = {path.name for path in EMBEDDED.iterdir()} - {"README.md"}
    assert files == {natural()[name].file for name in SHIPPED}
    assert sum(len(zlib.compress((EMBEDDED / file).read_bytes(), 9)) for file in files) < 3_000_000
    for name in SHIPPED:
        assert natural()[name].file in notice
        assert natural()[name].cite in notice
        assert "not checked" not in natural()[name].licence


@pytest.mark.parametrize("name", natural())
def test_a_federation_is_what_its_entry_says(name: str) -> None:
    each = here(name)
    path = each.path()
    assert path is not None
    assert hashlib.sha256(path.read_bytes()).hexdigest() == each.sha256
    if each.columns:
        assert list(read_columns(path)) == ["client", "target", *each.columns.split()]
    dataset = load(name)
    assert isinstance(dataset, Dataset)
    federation = federate(dataset)
    assert (len(dataset), len(federation)) == (each.samples, each.clients)
    assert federation.uneven == (each.metric == "balanced")
    assert dataset.in_time == each.in_time
    assert not any("SHA-256" in warning for warning in dataset.warnings)
    assert any(each.cite in note for note in federation.notes)
    assert any(each.traps in note for note in federation.notes)
    assert describe(federation).row_count > 1


def test_the_table_needs_no_torch() -> None:
    code = (
        "import sys\nfrom comity._federations import natural\nassert natural()['covid'].available\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", BANDS)
def test_classes_of_a_numeric_target_are_above_their_thresholds(name: str) -> None:
    each = here(name)
    path = each.path()
    assert path is not None
    targets = np.array(read_columns(path)["target"], float)
    above = (targets[:, None] > np.array(each.thresholds)).sum(1)
    dataset = load(name)
    assert isinstance(dataset, Dataset)
    assert [dataset.class_names[label] for label in dataset.y] == [each.bands[count] for count in above]
    if len(each.thresholds) == 1:  # the round number nearest to the median
        assert each.thresholds == (round(np.median(targets), -1),)
        assert each.bands == ("no", "yes")
        assert f"above {each.thresholds[0]}" in each.about
    else:
        assert each.bands == ("up to 15", "15 to 20", "20 to 25", "25 to 30", "above 30")


def test_a_blank_target_is_left_out_and_another_word_rejected(tmp_path: Path) -> None:
    (tmp_path / "natural").mkdir()
    file = tmp_path / "natural" / "traffic.csv.gz"
    text = "\n".join(["client,target,f1", *(f"{k % 2},{k + 55},{k}.5" for k in range(12)), "0,,1.5"])
    file.write_bytes(gzip.compress(text.encode()))
    found = load("traffic", tmp_path)
    assert isinstance(found, Dataset)
    assert [found.class_names[label] for label in found.y] == ["no"] * 6 + ["yes"] * 6
    file.write_bytes(gzip.compress(f"{text}\n1,high,2.5".encode()))
    with pytest.raises(ComityError, match=r"traffic\.csv\.gz: .*'high'"):
        load("traffic", tmp_path)


def test_patients_of_one_band_are_as_many_as_the_traps_say() -> None:
    here("parkinsons")
    dataset = load("parkinsons")
    assert isinstance(dataset, Dataset)
    counts = federate(dataset).counts
    alone = int(((counts > 0).sum(1) == 1).sum())
    assert natural()["parkinsons"].traps.startswith(f"{alone} of {len(counts)} patients")


def test_a_missing_file_says_where_and_how(tmp_path: Path) -> None:
    with pytest.raises(ComityError, match="to get it: comity data --get loans") as caught:
        load("loans", tmp_path)
    assert str(tmp_path / "natural" / "loans.csv.gz") in str(caught.value)
    assert natural()["loans"].path(tmp_path) is None


def test_another_file_is_used_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "natural").mkdir()
    rows = [f"{client},{'cheap' if k % 2 else 'expensive'},{k}.5" for client in "AB" for k in range(9)]
    (tmp_path / "natural" / "loans.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(ComityError, match=r"loans\.csv\.gz: corrupt or truncated"):
        load("loans", tmp_path)
    (tmp_path / "natural" / "landmine.csv").write_text("\n".join(["client,target,f1", *rows]))
    found = load("landmine", tmp_path)
    assert isinstance(found, Dataset)
    assert len(found) == 18
    assert "is another file than the one that comity knows by its SHA-256" in found.warnings[-1]


def test_a_file_without_its_names_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "natural").mkdir()
    target = tmp_path / "natural" / "office.npz"
    x, y = np.zeros((6, 3), np.uint8), np.arange(6) % 2
    np.savez(target, x_train=x, y_train=y, client_train=y)
    with pytest.raises(ComityError, match=r"office\.npz: no class_names"):
        load("office", tmp_path)
    np.savez(target, x_train=x, y_train=y, class_names=np.array(["a", "b"]), client_names=np.array(["c", "d"]))
    with pytest.raises(ComityError, match=r"office\.npz: no client_train"):
        load("office", tmp_path)


def test_the_table_of_the_docs_is_this_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "data.md").read_text()
    for name, each in natural().items():
        cells = [
            f"`{name}`",
            *re.split("; a client is an? ", each.about),
            str(each.clients),
            f"{each.samples:,}",
            each.metric,
        ]
        cells += ["blocks of time" if each.in_time else "at random", "yes" if each.embedded else "no"]
        assert f"| {' | '.join(cells)} |\n" in page


# Features.


def test_counts_become_logarithms(tmp_path: Path) -> None:
    (tmp_path / "natural").mkdir()
    counts, y = np.arange(18, dtype=np.uint8).reshape(6, 3), np.arange(6) % 2
    names = {"class_names": np.array(["no", "yes"]), "client_names": np.array(["b", "a"])}
    np.savez(tmp_path / "natural" / "amazon.npz", x_train=counts, y_train=y, client_train=y, **names)
    found = load("amazon", tmp_path)
    assert isinstance(found, Dataset)
    assert found.columns["client"].tolist() == ["a"] * 3 + ["b"] * 3
    assert np.allclose(found.x, np.log(1 + counts[[1, 3, 5, 0, 2, 4]].astype(float)))
    assert [found.class_names[label] for label in found.y] == ["yes"] * 3 + ["no"] * 3


def test_each_place_of_shakespeare_holds_one_character() -> None:
    text = load("shakespeare", max_clients=3)
    assert isinstance(text, Dataset)
    assert text.x.shape == (3 * 800, 10 * 29)
    assert (text.x.reshape(-1, 10, 29).sum(2) == 1).all()
    with np.load(EMBEDDED / "shakespeare.npz") as file:
        first = np.flatnonzero(file["client_names"][file["client_train"]] == np.unique(text.columns["client"])[0])
        assert (text.x[:800].reshape(800, 10, 29).argmax(2) == file["x_train"][first]).all()
        assert (text.y[:800] == file["y_train"][first]).all()


# Options.


def test_max_clients_are_evenly_spaced_by_name_and_samples_stay_in_order() -> None:
    owners = np.array(list("bbbbbaaaacccccccdde"))
    found = chosen(owners, NaturalOptions(max_clients=3, max_samples=4))
    assert Counter(owners[found]) == {"a": 4, "c": 4, "e": 1}
    for name in "ace":
        assert (np.diff(found[owners[found] == name]) > 0).all()
    assert (found == chosen(owners, NaturalOptions(max_clients=3, max_samples=4))).all()
    assert sorted(chosen(owners, NaturalOptions())) == list(range(len(owners)))


@pytest.mark.parametrize("name", ["covid", "spoken_digits"])
def test_a_part_of_a_federation(name: str) -> None:
    whole, part = load(name), load(name, max_clients=7, max_samples=30)
    assert isinstance(whole, Dataset)
    assert isinstance(part, Dataset)
    federation = federate(part)
    assert len(federation) == 7
    assert federation.counts.sum(1).tolist() == [30] * 7
    assert set(federation.client_names) < set(federate(whole).client_names)
    assert {federation.client_names[0], federation.client_names[-1]} <= set(federate(whole).client_names)
    assert part.classes == whole.classes


def test_options_are_those_of_a_run(tmp_path: Path) -> None:
    run = comity.run(
        data={"name": "covid", "max_clients": 4, "max_samples": 45},
        rounds=1,
        control="none",
        workers=1,
        out=tmp_path / "run",
    )
    assert len(run.clients.frame()) == 4
    assert "max_samples: 45" in (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(ComityError, match=r"data\.max_clients must be at least 1, got 0"):
        load("covid", max_clients=0)
    with pytest.raises(ComityError, match="unknown option 'target' of data covid"):
        load("covid", target="x")


# Blocks of time.


@given(size=st.integers(2, 60), folds=st.integers(2, 9))
def test_each_fold_is_one_block_of_time(size: int, folds: int) -> None:
    index = 100 + np.arange(size)
    splits = [split_block(np.random.default_rng(size).permutation(index), folds, fold) for fold in range(folds)]
    for train, test in splits:
        assert sorted([*train, *test]) == index.tolist()
        assert len(train)
        assert (np.diff(test) == 1).all()
    if size >= folds:
        assert np.concatenate([test for _, test in splits]).tolist() == index.tolist()
        assert np.ptp([len(test) for _, test in splits]) <= 1
    else:
        assert set(np.concatenate([test for _, test in splits])) == set(index)


@given(size=st.integers(2, 60), share=st.floats(0.01, 0.99))
def test_validation_samples_are_the_last(size: int, share: float) -> None:
    stay, last = split_last(np.arange(size), share)
    assert [*stay, *last] == list(range(size))
    assert len(stay)
    assert abs(len(last) - share * size) <= 0.5 or len(last) in (1, size - 1)


@pytest.mark.parametrize("name", ["air", "covid", "traffic"])
def test_seeds_test_consecutive_thirds(name: str) -> None:
    here(name)
    dataset = load(name)
    assert isinstance(dataset, Dataset)
    three = [federate(dataset, seed=seed, val_share=0.2) for seed in range(3)]
    for clients in zip(*(each.clients for each in three), strict=True):
        rows = np.concatenate([client.test_ids for client in clients])
        assert (np.diff(rows) == 1).all()
        assert len(rows) == sum(len(getattr(clients[0], split)) for split in ("train", "val", "test"))
        assert all(len(client.val) for client in clients)
    again = federate(dataset, seed=3)
    assert [list(c.test_ids) for c in again.clients] == [list(c.test_ids) for c in three[0].clients]


def test_blocks_of_time_have_a_fingerprint_of_their_own() -> None:
    dataset = load("air")
    assert isinstance(dataset, Dataset)
    assert fingerprint(dataset) != fingerprint(replace(dataset, in_time=False))


# Commands.


def test_get_prints_citation_licence_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "--get", "pisa"]) == 0
    out = capsys.readouterr().out
    each = natural()["pisa"]
    for part in (
        each.licence,
        each.cite,
        each.source,
        each.recipe,
        each.format,
        each.sha256,
        "comity downloads nothing",
    ):
        assert part in out
    assert main(["data", "--get", "parkinsons"]) == 0
    words = "numeric target, asked as classes up to 15, 15 to 20, 20 to 25, 25 to 30, above 30, because comity has no "
    assert f"{words}regression; balanced accuracy decides" in capsys.readouterr().out
    assert main(["data", "--get", "spoken-digits"]) == 0
    assert "nothing to do: it is embedded" in capsys.readouterr().out
    assert main(["data", "--get", "heart"]) == 0
    assert "licensed under CC BY 4.0" in capsys.readouterr().out
    assert main(["data", "--get", "piza"]) == 2
    assert "unknown natural federation 'piza'; did you mean pisa" in capsys.readouterr().err


def test_data_prints_the_traps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "--data", "air"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert natural()["air"].traps in words
    assert natural()["air"].split in words


@pytest.mark.parametrize("name", BANDS)
def test_a_numeric_target_is_said_to_be_asked_as_classes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    here(name)
    assert main(["data", "--data", name]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "numeric target, asked as " in words
    assert all(str(threshold) in words.partition("asked as ")[2] for threshold in BANDS[name])


def test_list_names_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "data"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} " in out for name in natural())
