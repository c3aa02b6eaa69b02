"""The table in the terminal."""

import io
import re

import numpy as np
from rich.console import Console

from comity.data import Dataset, Dirichlet, Federation, Synthetic, describe, federate, load


def printed(federation: Federation) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(describe(federation))
    return console.export_text()


def test_table_holds_the_counts_and_fits_80_columns() -> None:
    federation = federate(load("digits"), Dirichlet(), clients=20, val_share=0.2)
    text = printed(federation)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for client, row in enumerate(federation.counts):
        sizes = [len(getattr(federation.clients[client], split)) for split in ("train", "val", "test")]
        cells = [str(n) if n else "·" for n in row]
        assert " ".join([str(client), *map(str, sizes), *cells]) in re.sub(" +", " ", text)
    assert "Dirichlet(alpha=0.1, min_partition_size=10) · seed 0" in text
    assert "1,797 samples" in text
    assert "val" not in printed(federate(load("digits"), Dirichlet(), clients=5))


def test_clients_and_classes_by_name() -> None:
    text = re.sub(" +", " ", printed(federate(load("heart"))))
    assert "client train test no yes" in text
    assert "Long Beach 133 67 51 149" in text
    hostile = Dataset("mine", np.zeros((8, 2)), np.arange(8) // 2 % 2, columns={"client": ["[red]a", "<b>"] * 4})
    assert "[red]a" in printed(federate(hostile))


def test_where_accuracy_means_little() -> None:
    assert federate(load("heart")).caveat == ""
    y, client = np.array([0] * 40 + [0, 1] * 20 + [0, 1] * 4), np.repeat(["Bern", "Basel", "Chur"], [40, 40, 8])
    data = Dataset("mine", np.zeros((88, 2)), y, columns={"client": client})
    assert federate(data).caveat == (
        "Accuracy is very uncertain for clients Bern (1 of 3) which hold one class; and Chur (1 of 3) which have fewer "
        "than 10 test samples in all 3 folds together, so their result is very uncertain."
    )
    drawn = Dataset("mine", np.zeros((60, 2)), np.arange(60) % 2)
    assert "fewer than 10 test samples, so their result" in federate(drawn, clients=3).caveat
    whole = Dataset("mine", np.zeros((60, 2)), np.arange(60) % 2, columns={"client": np.repeat([0, 1, 2], 20)})
    assert federate(whole).caveat == ""  # 6 or 7 tests in each fold, 20 in all of them


def test_one_client_has_nobody_to_join() -> None:
    x, y = np.zeros((60, 2)), np.arange(60) % 2
    one = Dataset("mine", x, y, columns={"client": ["Bern"] * 60})
    assert federate(one).warnings == ("There is only one client (Bern), so there is no federation to join.",)
    assert federate(Dataset("mine", x, y), clients=1).warnings == (
        "There is only one client (0), so there is no federation to join.",
    )
    assert federate(Dataset("mine", x, y), clients=2).warnings == ()


def test_table_is_short_with_many_classes_or_clients() -> None:
    federation = federate(Synthetic(classes=50, label_shift=0.9), clients=4)
    text = re.sub(" +", " ", printed(federation))
    for client, row in enumerate(federation.counts):
        train, test = (len(getattr(federation.clients[client], split)) for split in ("train", "test"))
        assert f"{client} {train} {test} {(row > 0).sum()} class {row.argmax()} {row.max() / 100:.0%}" in text
    text = printed(federate(Synthetic(), clients=300))
    assert "…" in text
    assert len(text.splitlines()) < 40
