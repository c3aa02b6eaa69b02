"""What comes out of files is what a rule makes of the same numbers in memory."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import BUFFERS, COUNTER, SAVE, SHAPES, Model, Saved, assert_close, load, merged, models
from safetensors import safe_open

import comity
from comity import ComityError
from comity.files import aggregate
from comity.files._formats import WeightFile
from comity.rules import CALM, RULES, Auto, ConFREE, DroppedWarning, Mean, Rule, Updates

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
NUMPY = ("npz", "compressed", "fortran")  # which has no bfloat16


@pytest.mark.parametrize(
    ("kind", "dtype"), [(k, d) for k in SAVE for d in DTYPES if k not in NUMPY or d != torch.bfloat16], ids=str
)
@pytest.mark.parametrize("rule", [ConFREE(0.4), CALM(scale="layer")], ids=["ConFREE", "CALM"])
def test_every_format_and_precision(kind: str, rule: Rule, dtype: torch.dtype, tmp_path: Path) -> None:
    """Updates of bf16 are computed in float32: the last bit of bf16 is 1/256 of a weight."""
    saved = Saved(tmp_path, kind, models(dtype=dtype))
    found, expected = saved.merge(rule), saved.merged(rule)
    assert_close(found, expected)
    assert dtype != torch.bfloat16 or all(torch.equal(found[layer], expected[layer]) for layer in SHAPES)
    done = saved.done
    assert done.ids == ("client-0", "client-1", "client-2", "client-3")
    assert done.rule == repr(rule)
    assert done.residual <= rule.target
    assert sorted(done.layers) == sorted(SHAPES)
    assert done.coefficients.shape == (len(SHAPES) if rule.scope == "layer" else 1, 4)
    if dtype == torch.float32:
        outcome = rule.apply(Updates([{n: c[n] - saved.base[n] for n in done.layers} for c in saved.clients]))
        torch.testing.assert_close(done.coefficients, outcome.coefficients)
        torch.testing.assert_close(done.length_ratio, outcome.length_ratio, rtol=1e-5, atol=0)


def ties_by_hand(clients: list[torch.Tensor], density: float, scale: float) -> torch.Tensor:
    """One number after another: trim, elect, and average those that agree."""
    trimmed = []
    for update in clients:
        kept = update.abs().argsort(descending=True)[: math.ceil(density * len(update))]
        trimmed.append({int(i): float(update[i]) for i in kept})
    merged = []
    for i in range(len(clients[0])):
        here = [own[i] for own in trimmed if i in own]
        elected = [number for number in here if number * sum(here) > 0]
        merged.append(scale * sum(elected) / len(elected) if elected else 0.0)
    return torch.tensor(merged)


@pytest.mark.parametrize("scope", ["model", "layer"])
@pytest.mark.parametrize(("density", "scale", "server_lr"), [(0.2, 1.0, 1.0), (0.5, 0.7, 0.5), (1.0, 1.0, 1.0)])
def test_ties_is_its_definition(saved: Saved, scope: str, density: float, scale: float, server_lr: float) -> None:
    rule = {"name": "TIES", "density": density, "scale": scale, "scope": scope}
    found = saved.merge(rule, server_lr=server_lr)
    for names in [list(SHAPES)] if scope == "model" else [[name] for name in SHAPES]:
        clients = [torch.cat([(c[n] - saved.base[n]).flatten() for n in names]) for c in saved.clients]
        expected = server_lr * ties_by_hand(clients, density, scale)
        moved = torch.cat([(found[name] - saved.base[name]).flatten() for name in names])
        torch.testing.assert_close(moved, expected, rtol=0, atol=2e-6)
    assert saved.done.length_ratio.isnan().all()


def test_ties_in_pieces_has_the_same_bits(tmp_path: Path) -> None:
    """With next to no memory each tensor is read in many pieces, four times: to count, and to merge."""
    saved, read = Saved(tmp_path, "safetensors", models()), []
    one, pieces = saved.merge("TIES"), saved.merge("TIES", memory=120_000, progress=lambda *done: read.append(done))
    assert all(torch.equal(one[name], pieces[name]) for name in SHAPES)
    assert len(read) > 3 * 7 + 10
    assert read == sorted(read)
    assert 0.99 * read[-1][1] < read[-1][0] <= read[-1][1]  # buffers are read twice
    everything = saved.merge({"name": "TIES", "density": 1.0})  # signs alone are elected
    assert not torch.equal(everything["head.weight"], one["head.weight"])


def test_updates_that_agree_need_no_election(tmp_path: Path) -> None:
    base, (first, *_) = models()
    saved = Saved(tmp_path, "safetensors", (base, [first, first, first]))
    for rule in ({"name": "TIES", "density": 1.0}, {"name": "TaskArithmetic", "scale": 1 / 3}):
        assert_close(saved.merge(rule), saved.merged(Mean()))


def test_task_arithmetic_is_a_scaled_sum(saved: Saved) -> None:
    found = saved.merge({"name": "TaskArithmetic", "scale": 0.4})
    for name in SHAPES:
        total = sum(client[name] - saved.base[name] for client in saved.clients)
        torch.testing.assert_close(found[name], saved.base[name] + 0.4 * total)


def test_ties_is_for_files_alone() -> None:
    with pytest.raises(
        ComityError, match="rule TIES has no coefficients, which a run needs; it is for comity aggregate"
    ):
        comity.run(rule="TIES", rounds=1)
    with pytest.raises(ComityError, match=r"rule.arms must be rules that have coefficients, got 'TIES'"):
        Auto(arms=("Mean", "TIES"))


LENGTHS = [{"length": length} for length in (2.5, "mean", "fedexp")]


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in RULES if name not in ("TorchJD", "Auto")] + [("ConFREE", length) for length in LENGTHS],
)
def test_every_rule_and_length_to_the_bit(name: str, options: dict[str, Any], saved: Saved, tmp_path: Path) -> None:
    """The same pieces, the same products, the same sums; losses come from the table of sizes."""
    numbers = [1.0, 2.0, 3.0, 4.0] if RULES[name].needs_losses else None
    rows = [f"{number},client-{i},1" for i, number in enumerate(numbers or ())]
    (tmp_path / "sizes.csv").write_text("\n".join(["loss,name,size", *rows]))
    found = saved.merge({"name": name} | options, sizes=tmp_path / "sizes.csv" if numbers else None)
    expected = saved.merged(RULES[name](**options), losses=numbers)
    assert_close(found, expected)
    for layer in SHAPES:
        assert torch.equal(found[layer], expected[layer]), layer


def test_base_and_clients_of_different_formats_and_precisions(tmp_path: Path) -> None:
    base, clients = models()
    clients[3] = {name: value.double() for name, value in clients[3].items()}
    kinds = ["pt", "compressed", "sharded", "safetensors"]
    files = [SAVE[kind](clients[i], tmp_path / f"client-{i}") for i, kind in enumerate(kinds)]
    start = SAVE["safetensors"](base, tmp_path / "base")
    aggregate(start, files, tmp_path / "new.safetensors", ConFREE(0.3))
    assert_close(load(tmp_path / "new.safetensors"), merged(ConFREE(0.3), base, clients))


@pytest.mark.parametrize("kind", ["safetensors", "pt", "compressed", "channels last", "fortran"])
def test_pieces_of_tensors(kind: str, tmp_path: Path) -> None:
    """With next to no memory each tensor is read in many pieces; npz arrays are held as a whole."""
    saved, pieces = Saved(tmp_path, kind), []
    memory = 900_000 if saved.start.suffix == ".npz" else 120_000
    found = saved.merge(CALM(), memory=memory, progress=lambda *progress: pieces.append(progress))
    assert len(pieces) > 2 * 7 + 5  # two passes over seven tensors, and the long one in several pieces
    assert pieces == sorted(pieces)
    assert pieces[-1][0] == pieces[-1][1]
    assert_close(found, saved.merged(CALM()))


def test_pieces_are_cut_where_updates_cuts_its_matrix(tmp_path: Path) -> None:
    """A tensor wider than one piece of `Updates`, in chunks of several such pieces: the same model to the bit."""
    base, *clients = ({"w": torch.randn(500, 300, generator=torch.Generator().manual_seed(i))} for i in range(4))
    saved, pieces = Saved(tmp_path, given=(base, clients)), []
    found = saved.merge(memory=16e6, progress=lambda done, _: pieces.append(done))
    assert len(pieces) == 2 * 2
    assert torch.equal(found["w"], saved.merged(ConFREE(), names=["w"])["w"])


@pytest.mark.parametrize("kind", ["safetensors", "compressed", "channels last"])
def test_the_same_bits_with_any_number_of_threads_however_much_is_read_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many pieces, and a client that is bad in a late one: it is left out for the same reason."""
    shape, name = (3, 90, 700, 2), "conv.weight"
    base, *clients = ({name: torch.randn(shape, generator=torch.Generator().manual_seed(i))} for i in range(5))
    clients[1][name][2, 80:] = torch.nan
    saved, before, outcomes = Saved(tmp_path, kind, (base, clients)), torch.get_num_threads(), []
    try:
        for threads, most in ((1, 2**24), (1, 2**22), (3, 2**22), (3, 2**21)):
            torch.set_num_threads(threads)
            monkeypatch.setattr("comity.files._updates.LARGEST", most)
            with pytest.warns(DroppedWarning, match="client-1"):
                saved.merge(skip_bad=True)
            assert torch.get_num_threads() == threads
            parts = saved.done.coefficients, saved.done.length_ratio
            outcomes.append((saved.new.read_bytes(), *(part.tolist() for part in parts)))
    finally:
        torch.set_num_threads(before)
    assert outcomes == outcomes[:1] * len(outcomes)


@pytest.mark.parametrize("kind", ["safetensors", "sharded", "nested", "compressed"])
def test_each_file_is_read_twice_at_most(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, read = Saved(tmp_path, kind), WeightFile.read
    counted: dict[Path, int] = {}

    def counting(self: WeightFile, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        numbers = read(self, name, start, stop)
        counted[self.path] = counted.get(self.path, 0) + numbers.nbytes
        return numbers

    monkeypatch.setattr(WeightFile, "read", counting)
    saved.merge()
    assert len(counted) == (10 if kind == "sharded" else 5)
    assert sum(counted.values()) <= 2 * 5 * sum(value.nbytes for value in saved.base.values())


# What is not merged.


def test_metadata_and_order_stay(saved: Saved) -> None:
    saved.merge()
    with safe_open(saved.start, "pt") as old, safe_open(saved.new, "pt") as new:
        assert new.metadata() == old.metadata() == {"step": "3"}
        assert list(new.offset_keys()) == list(old.offset_keys())


@pytest.mark.parametrize("kind", ["sharded", "torch shards"])
def test_a_folder_comes_with_what_lies_in_it(kind: str, tmp_path: Path) -> None:
    saved = Saved(tmp_path, kind)
    (saved.start / "model.gguf").write_bytes(b"the same in another format, which would be old news")
    saved.merge()
    shards = {f"model-0000{k}-of-00002.safetensors" for k in (1, 2)}
    assert {path.name for path in saved.new.iterdir()} == shards | {"config.json", "model.safetensors.index.json"}
    if kind == "sharded":
        index = "model.safetensors.index.json"
        assert json.loads((saved.new / index).read_text()) == json.loads((saved.start / index).read_text())
        indices = [folder / index for folder in (saved.start, *saved.files)]  # an index stands for its folder
        aggregate(indices[0], indices[1:], tmp_path / "other", ConFREE(0.4))
        assert_close(load(tmp_path / "other"), saved.merged(ConFREE(0.4)))


def test_tied_tensors_are_merged_once_and_written_under_both_names(tmp_path: Path) -> None:
    def tied(number: float) -> dict[str, torch.Tensor]:
        weight = torch.full((5, 6), number)
        return {"embed.weight": weight, "head.weight": weight, "part": torch.arange(9.0)[2:5], "empty": torch.zeros(0)}

    saved = Saved(tmp_path, "pt", (tied(1.0), [tied(2.0), tied(3.0)]))
    assert_close(saved.merge("Mean"), tied(2.5))
    assert set(saved.done.layers) == {"embed.weight", "part", "empty"}


def test_buffers_and_counters(saved: Saved) -> None:
    averaged = saved.merge(sizes={f"client-{i}": float(i + 1) for i in range(4)})
    kept = saved.merge(buffers="keep")
    for name in BUFFERS:
        expected = sum((i + 1) / 10 * client[name] for i, client in enumerate(saved.clients))
        torch.testing.assert_close(averaged[name], expected)
        assert torch.equal(kept[name], saved.base[name])
    assert averaged[COUNTER] == kept[COUNTER] == 7
    assert averaged[COUNTER].dtype == torch.int64


@pytest.mark.parametrize(
    ("only", "exclude", "changed"),
    [
        (["head.*"], [], {"head.bias", "head.weight"}),
        (["weight"], [], {"bn.weight", "conv.weight", "head.weight"}),
        (["conv*", "head.bias"], [], {"conv.weight", "head.bias"}),
        ([], ["bias", "running_*"], {"bn.weight", "conv.weight", "head.weight"}),
        (["head.*"], ["head.bias"], {"head.weight"}),
    ],
)
def test_only_and_exclude(only: list[str], exclude: list[str], changed: set[str], saved: Saved) -> None:
    names = [name for name in SHAPES if name in changed]
    expected = saved.merged(ConFREE(0.4), names=names)
    found = saved.merge(ConFREE(0.4), only=only, exclude=exclude)
    assert_close(found, saved.base | {name: expected[name] for name in names})


def test_clients_may_hold_the_selected_tensors_alone(tmp_path: Path) -> None:
    base, clients = models()
    small = [{"head.weight": c["head.weight"], "other": torch.ones(2)} for c in clients]
    found = Saved(tmp_path, given=(base, small)).merge(ConFREE(0.4), only=["head.weight"])
    expected = merged(ConFREE(0.4), base, clients, ["head.weight"])
    assert_close(found, base | {"head.weight": expected["head.weight"]})


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_strange_dtypes_are_left_alone_by_name_only(kind: str, tmp_path: Path) -> None:
    base = {"w": torch.ones(3), "q": torch.ones(3).to(torch.float8_e4m3fn), "z": torch.ones(2, dtype=torch.complex64)}
    saved = Saved(tmp_path, kind, (base, [base | {"w": torch.zeros(3)}]))
    with pytest.raises(comity.ComityError, match=r"'q' is F8_E4M3.*--exclude 'q'"):
        saved.merge(exclude=["z"])
    found = saved.merge(exclude=["q", "z"])
    assert torch.equal(found.pop("q").float(), torch.ones(3))
    assert_close(found, {"w": torch.zeros(3), "z": base["z"]})


@pytest.mark.parametrize(
    ("kind", "base", "client", "options", "told"),
    [
        (
            "pt",
            {"w": torch.ones(3), "s": torch.eye(3).to_sparse()},
            {"w": torch.zeros(3), "s": torch.eye(3).to_sparse()},
            {"exclude": ["s"]},
            "'s' is torch.sparse_coo, which a safetensors file cannot hold",
        ),
        (
            "safetensors",
            {"w": torch.full((10,), 60_000, dtype=torch.float16)},
            {"w": torch.full((10,), 65_000.0)},
            {"server_lr": 3},
            "'w' would not be finite as F16",
        ),
    ],
    ids=["sparse", "overflow"],
)
def test_numbers_that_cannot_be_written(
    kind: str, base: Model, client: Model, options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    saved = Saved(tmp_path, kind, (base, [client]))
    with pytest.raises(comity.ComityError, match=told):
        saved.merge(Mean(), **options)
    saved.assert_nothing_is_written()


# Updates.


@pytest.mark.parametrize("kind", ["safetensors", "pt", "npz"])
def test_files_that_are_updates(kind: str, tmp_path: Path) -> None:
    base, clients = models()
    updates = [{n: c[n] - base[n] for n in (*SHAPES, *BUFFERS)} | {COUNTER: c[COUNTER]} for c in clients]
    files = [SAVE[kind](update, tmp_path / f"client-{i}") for i, update in enumerate(updates)]
    aggregate(None, files, tmp_path / "new.safetensors", ConFREE(0.4), exclude=["head.bias"])
    found = load(tmp_path / "new.safetensors")
    names = [name for name in SHAPES if name != "head.bias"]
    expected = ConFREE(0.4)([{name: update[name] for name in names} for update in updates])
    for name in names:
        torch.testing.assert_close(found[name], expected[name])
    assert not found["head.bias"].any()  # and not the first client's
    torch.testing.assert_close(found["bn.running_var"], torch.stack([u["bn.running_var"] for u in updates]).mean(0))
    assert found[COUNTER] == updates[0][COUNTER]


# Rules, sizes, names.


def test_mean_by_size_and_learning_rate(saved: Saved, tmp_path: Path) -> None:
    table = tmp_path / "sizes.csv"
    table.write_text("name,size\nclient-0,10\nclient-1,20\nclient-2.safetensors,30\nclient-3,40\nabsent,5\n")
    expected = saved.merged(Mean(), sizes=[10, 20, 30, 40])
    found = saved.merge(Mean(), server_lr=0.5, sizes=table)
    assert_close({n: found[n] for n in SHAPES}, {n: (saved.base[n] + expected[n]) / 2 for n in SHAPES})
    torch.testing.assert_close(saved.done.length_ratio, torch.full((len(SHAPES),), 0.5, dtype=torch.float64))
    with pytest.raises(comity.ComityError, match=r"server\.lr must be above 0, got -1"):
        saved.merge(Mean(), server_lr=-1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name,size\nclient-0,10\n", "no size for client 'client-1'"),
        ("name,size\nclient-0,ten\n", "could not convert string to float: 'ten'"),
        ("name,size\nclient-0,-1\nclient-1,1\nclient-2,1\nclient-3,1\n", r"size of client 'client-0' is -1\.0"),
        ("name,size\nclient-0,1\nclient-0,2\n", "the row of 'client-0' comes twice"),
        ("name,size\nclient-0,1,000\n", "the row of 'client-0' comes twice or is too long"),
        ("name,size\nclient-0\n", "a name and a number in each row"),
        ("", "no size for client 'client-0'"),
        ("name,weight\na,1\n", "the column 'size' is missing"),
    ],
)
def test_bad_sizes(text: str, told: str, saved: Saved, tmp_path: Path) -> None:
    (tmp_path / "sizes.csv").write_text(text)
    with pytest.raises(comity.ComityError, match=told):
        saved.merge(sizes=tmp_path / "sizes.csv")
    assert not saved.new.exists()


def test_names_of_clients(tmp_path: Path) -> None:
    base, clients = models(2)
    start = SAVE["pt"](base, tmp_path / "base")
    files = []
    for i, client in enumerate(clients):
        (tmp_path / f"site-{i}").mkdir()
        files.append(SAVE["pt"](client, tmp_path / f"site-{i}" / "model"))
    assert aggregate(start, files, tmp_path / "new.safetensors").ids == ("site-0", "site-1")
    with pytest.raises(comity.ComityError, match="could be that of client 'site-0' or 'site-1'"):
        aggregate(start, files, tmp_path / "other.safetensors", sizes={"model": 1})
    alike = [SAVE[kind](client, tmp_path / "a") for kind, client in zip(("pt", "npz"), clients, strict=True)]
    assert aggregate(start, alike, tmp_path / "other.safetensors").ids == ("a.pt", "a.npz")
