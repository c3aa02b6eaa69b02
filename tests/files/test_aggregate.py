"""What comes out of files is what a rule makes of the same numbers in memory."""

from pathlib import Path

import pytest
import torch
from checkpoints import BUFFERS, COUNTER, SAVE, SHAPES, assert_close, load, merged, models, output_like, save_all
from safetensors import safe_open

import comity
from comity.files import aggregate
from comity.files._formats import WeightFile
from comity.rules import CALM, MGDA, RULES, ConFREE, DroppedWarning, Mean, Projection, Rule, Updates

NEEDS_LOSSES = {name for name, rule in RULES.items() if rule.needs_losses}


@pytest.mark.parametrize("kind", SAVE)
@pytest.mark.parametrize("rule", [ConFREE(0.4), CALM(scale="layer")], ids=["ConFREE", "CALM"])
def test_every_format(kind: str, rule: Rule, tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all(kind, base, clients, tmp_path / "in")
    new = output_like(start, tmp_path)
    done = aggregate(start, files, new, rule)
    expected = merged(rule, base, clients)
    assert_close(load(new), expected)
    assert done.ids == ("client-0", "client-1", "client-2", "client-3")
    assert done.rule == repr(rule)
    assert done.residual <= rule.target
    assert sorted(done.layers) == sorted(SHAPES)
    assert done.coefficients.shape == (len(SHAPES) if rule.scope == "layer" else 1, 4)
    outcome = rule.apply(Updates([{n: c[n] - base[n] for n in done.layers} for c in clients]))
    torch.testing.assert_close(done.coefficients, outcome.coefficients)
    torch.testing.assert_close(done.stretch, outcome.stretch, rtol=1e-5, atol=0)


@pytest.mark.parametrize("length", [2.5, "mean", "fedexp"])
def test_every_length_but_one_that_asks_clients(length: float | str, tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    aggregate(start, files, tmp_path / "new.safetensors", {"name": "ConFREE", "length": length})
    assert_close(load(tmp_path / "new.safetensors"), merged(ConFREE(length=length), base, clients))  # type: ignore[arg-type]
    with pytest.raises(comity.ComityError, match="only a run can do"):
        aggregate(start, files, tmp_path / "none.safetensors", ConFREE(length="search"))
    assert not (tmp_path / "none.safetensors").exists()


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("TorchJD", "Auto")])
def test_every_rule_to_the_bit(name: str, tmp_path: Path) -> None:
    """The same pieces, the same products, the same sums."""
    base, clients = models()
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    options: dict[str, object] = {}
    if name in NEEDS_LOSSES:
        options["losses"] = {f"client-{i}": 1.0 + i for i in range(4)}
    aggregate(start, files, tmp_path / "new.safetensors", name, **options)  # type: ignore[arg-type]
    losses = [1.0, 2.0, 3.0, 4.0] if name in NEEDS_LOSSES else None
    expected = merged(RULES[name](), base, clients, losses=losses)
    found = load(tmp_path / "new.safetensors")
    assert_close(found, expected)
    for layer in SHAPES:
        assert torch.equal(found[layer], expected[layer]), layer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["safetensors", "sharded", "pt"])
def test_other_precisions(dtype: torch.dtype, kind: str, tmp_path: Path) -> None:
    base, clients = models(dtype=dtype)
    start, files = save_all(kind, base, clients, tmp_path / "in")
    new = output_like(start, tmp_path)
    aggregate(start, files, new, MGDA(scope="layer"))
    assert_close(load(new), merged(MGDA(scope="layer"), base, clients))


def test_small_differences_of_bf16_are_not_lost(tmp_path: Path) -> None:
    """The last bit of bf16 is 1/256 of a weight: in bf16 the mean of two such updates would be none."""
    base = {"w": torch.ones(1000, dtype=torch.bfloat16)}
    step = torch.finfo(torch.bfloat16).eps
    clients = [{"w": base["w"] + step * i} for i in (1, 3)]
    start, files = (
        SAVE["pt"](base, tmp_path / "base"),
        [SAVE["pt"](c, tmp_path / f"{i}") for i, c in enumerate(clients)],
    )
    aggregate(start, files, tmp_path / "new.safetensors", "Mean")
    assert torch.equal(load(tmp_path / "new.safetensors")["w"], base["w"] + 2 * step)


def test_base_and_clients_of_different_formats_and_precisions(tmp_path: Path) -> None:
    base, clients = models()
    files = [
        SAVE["pt"](clients[0], tmp_path / "client-0"),
        SAVE["compressed"](clients[1], tmp_path / "client-1"),
        SAVE["sharded"](clients[2], tmp_path / "client-2"),
        SAVE["safetensors"]({n: v.double() for n, v in clients[3].items()}, tmp_path / "client-3"),
    ]
    start = SAVE["safetensors"](base, tmp_path / "base")
    aggregate(start, files, tmp_path / "new.safetensors", ConFREE(0.3))
    assert_close(load(tmp_path / "new.safetensors"), merged(ConFREE(0.3), base, clients))


@pytest.mark.parametrize("kind", ["safetensors", "pt", "compressed", "channels last", "fortran"])
def test_pieces_of_tensors(kind: str, tmp_path: Path) -> None:
    """With next to no memory each tensor is read in many pieces; npz arrays are held as a whole."""
    base, clients = models()
    start, files = save_all(kind, base, clients, tmp_path / "in")
    new = output_like(start, tmp_path)
    pieces: list[int] = []
    memory = 900_000 if start.suffix == ".npz" else 120_000
    aggregate(start, files, new, CALM(), memory=memory, progress=lambda done, _: pieces.append(done))
    assert len(pieces) > 2 * 7 + 5  # two passes over seven tensors, and the long one in several pieces
    assert_close(load(new), merged(CALM(), base, clients))


def test_pieces_are_cut_where_updates_cuts_its_matrix(tmp_path: Path) -> None:
    """A tensor wider than one piece of `Updates`, in chunks of several such pieces: the same model to the bit."""
    generator = torch.Generator().manual_seed(1)
    base = {"w": torch.randn(500, 300, generator=generator)}
    clients = [{"w": base["w"] + torch.randn(500, 300, generator=generator)} for _ in range(3)]
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    pieces: list[int] = []
    aggregate(start, files, tmp_path / "new.safetensors", memory=16e6, progress=lambda done, _: pieces.append(done))
    assert len(pieces) == 2 * 2
    assert torch.equal(load(tmp_path / "new.safetensors")["w"], merged(ConFREE(), base, clients, ["w"])["w"])


@pytest.mark.parametrize("kind", ["safetensors", "compressed", "channels last"])
def test_the_same_bits_with_any_number_of_threads_however_much_is_read_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many pieces, and a client that is bad in a late one: it is left out for the same reason."""
    generator = torch.Generator().manual_seed(2)
    base = {"conv.weight": torch.randn(3, 90, 700, 2, generator=generator)}
    clients = [{"conv.weight": base["conv.weight"] + torch.randn(3, 90, 700, 2, generator=generator)} for _ in range(4)]
    clients[1]["conv.weight"][2, 80:] = torch.nan
    start, files = save_all(kind, base, clients, tmp_path / "in")
    before, outcomes = torch.get_num_threads(), []
    try:
        for threads, most in ((1, 2**24), (1, 2**22), (3, 2**22), (3, 2**21)):
            torch.set_num_threads(threads)
            monkeypatch.setattr("comity.files._updates.LARGEST", most)
            new = output_like(start, tmp_path)
            with pytest.warns(DroppedWarning, match="client-1"):
                done = aggregate(start, files, new, "ConFREE", skip_bad=True, overwrite=True)
            assert torch.get_num_threads() == threads
            outcomes.append((new.read_bytes(), *(part.tolist() for part in (done.coefficients, done.stretch))))
    finally:
        torch.set_num_threads(before)
    assert outcomes == outcomes[:1] * len(outcomes)


@pytest.mark.parametrize("kind", ["safetensors", "sharded", "nested", "compressed"])
def test_each_file_is_read_twice_at_most(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, clients = models()
    start, files = save_all(kind, base, clients, tmp_path / "in")
    counted: dict[Path, int] = {}
    read = WeightFile.read

    def counting(self: WeightFile, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        numbers = read(self, name, start, stop)
        counted[self.path] = counted.get(self.path, 0) + numbers.nbytes
        return numbers

    monkeypatch.setattr(WeightFile, "read", counting)
    aggregate(start, files, output_like(start, tmp_path), "ConFREE")
    assert len(counted) == (10 if kind == "sharded" else 5)
    size = sum(value.nbytes for value in base.values())
    assert sum(counted.values()) <= 2 * 5 * size


# What is not merged.


def test_metadata_order_and_alignment_stay(tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    aggregate(start, files, tmp_path / "new.safetensors")
    with safe_open(start, "pt") as old, safe_open(tmp_path / "new.safetensors", "pt") as new:
        assert new.metadata() == old.metadata() == {"step": "3"}
        assert list(new.offset_keys()) == list(old.offset_keys())


def test_a_folder_comes_with_what_lies_in_it(tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("sharded", base, clients, tmp_path / "in")
    (start / "pytorch_model.bin").write_bytes(b"the same in another format, which would be old news")
    aggregate(start, files, tmp_path / "new")
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {path.name for path in start.iterdir()} - {"pytorch_model.bin"}
    index = "model.safetensors.index.json"
    assert (tmp_path / "new" / index).read_text() == (start / index).read_text()


def test_an_index_file_stands_for_its_folder(tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("sharded", base, clients, tmp_path / "in")
    indices = [folder / "model.safetensors.index.json" for folder in (start, *files)]
    aggregate(indices[0], indices[1:], tmp_path / "new", ConFREE(0.4))
    assert_close(load(tmp_path / "new"), merged(ConFREE(0.4), base, clients))


def test_the_one_file_of_a_folder_alone(tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("folder", base, clients, tmp_path / "in")
    aggregate(start, files, tmp_path / "new.safetensors", ConFREE(0.4))
    assert_close(load(tmp_path / "new.safetensors"), merged(ConFREE(0.4), base, clients))


def test_tied_tensors_are_merged_once_and_written_under_both_names(tmp_path: Path) -> None:
    def tied(weight: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"embed.weight": weight, "head.weight": weight, "part": torch.arange(9.0)[2:5], "empty": torch.zeros(0)}

    torch.save(tied(torch.ones(5, 6)), tmp_path / "base.pt")
    for i in (1, 2):
        torch.save(tied(torch.ones(5, 6) + i), tmp_path / f"{i}.pt")
    done = aggregate(tmp_path / "base.pt", [tmp_path / "1.pt", tmp_path / "2.pt"], tmp_path / "new.safetensors", "Mean")
    assert set(done.layers) == {"embed.weight", "part", "empty"}
    expected = tied(torch.full((5, 6), 2.5))
    assert_close(load(tmp_path / "new.safetensors"), expected)


def test_buffers_and_counters(tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    sizes = {f"client-{i}": float(i + 1) for i in range(4)}
    aggregate(start, files, tmp_path / "mean.safetensors", sizes=sizes)
    aggregate(start, files, tmp_path / "kept.safetensors", buffers="keep")
    averaged, kept = load(tmp_path / "mean.safetensors"), load(tmp_path / "kept.safetensors")
    for name in BUFFERS:
        expected = sum((i + 1) / 10 * client[name] for i, client in enumerate(clients))
        torch.testing.assert_close(averaged[name], expected)
        assert torch.equal(kept[name], base[name])
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
def test_only_and_exclude(only: list[str], exclude: list[str], changed: set[str], tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    aggregate(start, files, tmp_path / "new.safetensors", ConFREE(0.4), only=only, exclude=exclude)
    found = load(tmp_path / "new.safetensors")
    names = [name for name in SHAPES if name in changed]
    expected = base | {name: merged(ConFREE(0.4), base, clients, names)[name] for name in names}
    assert_close(found, expected)


def test_clients_may_hold_the_selected_tensors_alone(tmp_path: Path) -> None:
    base, clients = models()
    start = SAVE["safetensors"](base, tmp_path / "base")
    small = [{"head.weight": c["head.weight"], "other": torch.ones(2)} for c in clients]
    files = [SAVE["safetensors"](c, tmp_path / f"client-{i}") for i, c in enumerate(small)]
    aggregate(start, files, tmp_path / "new.safetensors", ConFREE(0.4), only=["head.weight"])
    expected = base | {"head.weight": merged(ConFREE(0.4), base, clients, ["head.weight"])["head.weight"]}
    assert_close(load(tmp_path / "new.safetensors"), expected)


def test_strange_dtypes_are_left_alone_by_name_only(tmp_path: Path) -> None:
    base = {"w": torch.ones(3), "q": torch.ones(3).to(torch.float8_e4m3fn)}
    start = SAVE["safetensors"](base, tmp_path / "base")
    files = [SAVE["safetensors"](base | {"w": torch.zeros(3)}, tmp_path / "client")]
    with pytest.raises(comity.ComityError, match=r"'q' is F8_E4M3.*--exclude 'q'"):
        aggregate(start, files, tmp_path / "new.safetensors")
    aggregate(start, files, tmp_path / "new.safetensors", exclude=["q"])
    assert torch.equal(load(tmp_path / "new.safetensors")["w"], torch.zeros(3))


# Updates.


@pytest.mark.parametrize("kind", ["safetensors", "pt", "npz"])
def test_files_that_are_updates(kind: str, tmp_path: Path) -> None:
    base, clients = models()
    updates = [{n: c[n] - base[n] for n in (*SHAPES, *BUFFERS)} | {COUNTER: c[COUNTER]} for c in clients]
    files = [SAVE[kind](update, tmp_path / f"client-{i}") for i, update in enumerate(updates)]
    new = tmp_path / "new.safetensors"
    aggregate(None, files, new, ConFREE(0.4), exclude=["head.bias"])
    found = load(new)
    names = [name for name in SHAPES if name != "head.bias"]
    expected = ConFREE(0.4)([{name: update[name] for name in names} for update in updates])
    for name in names:
        torch.testing.assert_close(found[name], expected[name])
    assert not found["head.bias"].any()  # and not the first client's
    torch.testing.assert_close(found["bn.running_var"], torch.stack([u["bn.running_var"] for u in updates]).mean(0))
    assert found[COUNTER] == updates[0][COUNTER]


# Rules, sizes, names.


def test_mean_by_size_and_learning_rate(tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    table = tmp_path / "sizes.csv"
    table.write_text("name,size\nclient-0,10\nclient-1,20\nclient-2.safetensors,30\nclient-3,40\nabsent,5\n")
    done = aggregate(start, files, tmp_path / "new.safetensors", Mean(), server_lr=0.5, sizes=table)
    expected = merged(Mean(), base, clients, sizes=[10, 20, 30, 40])
    found = load(tmp_path / "new.safetensors")
    assert_close({n: found[n] for n in SHAPES}, {n: (base[n] + expected[n]) / 2 for n in SHAPES})
    torch.testing.assert_close(done.stretch, torch.full((len(SHAPES),), 0.5, dtype=torch.float64))
    with pytest.raises(comity.ComityError, match=r"server\.lr must be above 0, got -1"):
        aggregate(start, files, tmp_path / "other.safetensors", Mean(), server_lr=-1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name,size\nclient-0,10\n", "no size for client 'client-1'"),
        ("name,size\nclient-0,ten\n", "size of 'client-0' is 'ten'"),
        ("name,size\nclient-0,-1\nclient-1,1\nclient-2,1\nclient-3,1\n", r"size of client 'client-0' is -1\.0"),
        ("name,size\nclient-0,1\nclient-0,2\n", "'client-0' is in it twice"),
        ("client-0,1,0.5\n", "the row 'client-0,1,0.5' is not of the form 'name,size'"),
        ("name,size\nclient-0\n", "the row 'client-0' is not of the form"),
        ("", "columns name and size"),
        ("name,weight\na,1\n", "columns name and size"),
    ],
)
def test_bad_sizes(text: str, told: str, tmp_path: Path) -> None:
    start, files = save_all("safetensors", *models(), tmp_path / "in")
    (tmp_path / "sizes.csv").write_text(text)
    with pytest.raises(comity.ComityError, match=told):
        aggregate(start, files, tmp_path / "new.safetensors", sizes=tmp_path / "sizes.csv")
    assert not (tmp_path / "new.safetensors").exists()


def test_losses_from_the_table(tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    rows = [f"{3 - i},client-{i},1" for i in range(4)]
    (tmp_path / "sizes.csv").write_text("\n".join(["loss,name,size", *rows]))
    aggregate(start, files, tmp_path / "new.safetensors", "FedFV", sizes=tmp_path / "sizes.csv")
    assert_close(load(tmp_path / "new.safetensors"), merged(RULES["FedFV"](), base, clients, losses=[3, 2, 1, 0]))


def test_random_orders_go_on_as_in_memory(tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    streamed, remembered = (Projection(order="sequential", seed=3) for _ in range(2))
    for k in range(2):
        aggregate(start, files, tmp_path / f"{k}.safetensors", streamed)
        assert_close(load(tmp_path / f"{k}.safetensors"), merged(remembered, base, clients))


def test_as_long_as_the_mean(tmp_path: Path) -> None:
    base, clients = models()
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    done = aggregate(start, files, tmp_path / "new.safetensors", CALM(length="mean"))
    torch.testing.assert_close(done.stretch, torch.ones(len(SHAPES), dtype=torch.float64))


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


def test_one_client_is_kept_as_it_is(tmp_path: Path) -> None:
    base, (client,) = models(1)
    start, files = save_all("safetensors", base, [client], tmp_path / "in")
    aggregate(start, files, tmp_path / "new.safetensors")
    found = load(tmp_path / "new.safetensors")
    for name in SHAPES:
        torch.testing.assert_close(found[name], client[name])


def test_overflow_of_half_precision_is_refused(tmp_path: Path) -> None:
    base = {"w": torch.full((10,), 60_000, dtype=torch.float16)}
    clients = [{"w": torch.full((10,), 65_000.0)}]
    start, files = save_all("safetensors", base, clients, tmp_path / "in")
    with pytest.raises(comity.ComityError, match="'w' would not be finite as F16"):
        aggregate(start, files, tmp_path / "new.safetensors", Mean(), server_lr=3)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_progress_comes_to_its_end(tmp_path: Path) -> None:
    start, files = save_all("safetensors", *models(), tmp_path / "in")
    told: list[tuple[int, int]] = []
    aggregate(start, files, tmp_path / "new.safetensors", progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
