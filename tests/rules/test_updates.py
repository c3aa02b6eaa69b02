import warnings

import numpy as np
import pytest
import torch

from comity._errors import ComityError
from comity._layout import Layout
from comity._threads import in_order
from comity.rules import ConFREE, DroppedWarning, Mean, Projection, Updates

LAYOUT = Layout([("conv.weight", (8, 5)), ("conv.bias", (8,)), ("head.weight", (3, 4))])


def dicts(U: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    return [LAYOUT.state_dict(row) for row in U]


@pytest.fixture
def U() -> torch.Tensor:
    return torch.randn(5, LAYOUT.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def on_disk(U, tmp_path):
    file = np.memmap(tmp_path / "updates", dtype=np.float64, mode="w+", shape=tuple(U.shape))
    file[:] = U.numpy()
    file.flush()
    return np.memmap(tmp_path / "updates", dtype=np.float64, mode="r", shape=tuple(U.shape))


@pytest.mark.parametrize("kind", ["matrix", "array", "vectors", "dicts", "mapped"])
def test_every_input_gives_the_same(U, on_disk, kind):
    rows = {"matrix": U, "array": U.numpy(), "vectors": list(U), "dicts": dicts(U), "mapped": on_disk}[kind]
    u = Updates(rows, layout=None if kind == "dicts" else LAYOUT)
    assert u.layout == LAYOUT
    assert u.ids == (0, 1, 2, 3, 4)
    for k, layer in enumerate(LAYOUT.layers):
        part = U[:, layer.start : layer.stop]
        torch.testing.assert_close(u.grams[k], part @ part.T, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(u.gram, U @ U.T, rtol=1e-13, atol=1e-13)
    x = torch.arange(5.0, dtype=torch.float64)
    torch.testing.assert_close(u.combine(x), x @ U, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(u.row(3), U[3], rtol=0, atol=0)


def test_a_mapped_matrix_is_not_copied(on_disk):
    assert Updates(on_disk).row(0).data_ptr() == on_disk.ctypes.data


def test_coefficients_for_each_layer(U):
    u = Updates(U, layout=LAYOUT)
    X = torch.randn(3, 5, dtype=torch.float64)
    expected = torch.cat([x @ U[:, layer.start : layer.stop] for x, layer in zip(X, LAYOUT.layers, strict=True)])
    torch.testing.assert_close(u.combine(X), expected)
    torch.testing.assert_close(u.combine(X[:1]), X[0] @ U)
    torch.testing.assert_close(u.mix(X), X @ U)


@pytest.mark.parametrize(("count", "columns"), [(3, 100_000), (300, 20_000)])
def test_many_pieces_and_bands_in_float32(count, columns):
    U = torch.randn(count, columns, generator=torch.Generator().manual_seed(1))
    layout = Layout([("a", (columns // 3,)), ("b", (columns - columns // 3,))])
    u = Updates(U, layout=layout)
    exact = U.double() @ U.double().T
    r = exact.diagonal().sqrt()
    error = ((u.gram - exact) / (r * r[:, None])).abs()
    assert float(error.fill_diagonal_(0).max()) < 1e-7  # the cosine from which on it counts as a conflict
    torch.testing.assert_close(u.gram.diagonal(), exact.diagonal(), rtol=1e-6, atol=0)
    assert torch.equal(u.gram, u.gram.T)
    x = torch.rand(count, dtype=torch.float64)
    assert float((u.combine(x) - x @ U.double()).norm() / (x @ U.double()).norm()) < 1e-6
    assert u.combine(x).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_result_has_the_dtype_of_the_rows(U, dtype):
    rows = U.to(dtype)
    update = Mean()(rows)
    assert update.dtype == dtype
    expected = rows.double().mean(0)
    assert float((update - expected).norm() / expected.norm()) <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("count", [20, 90])
def test_the_same_bits_with_any_number_of_threads(count):
    U = torch.randn(count, 150_000, generator=torch.Generator().manual_seed(2))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outcome = ConFREE().apply(Updates(U))
            assert torch.get_num_threads() == threads
            results.append((Updates(U).gram, outcome.coefficients, outcome.update, outcome.length_ratio))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_results_of_threads_wait_in_order_and_do_not_pile_up():
    begun = []
    results = in_order(lambda task: begun.append(task) or task, range(100), threads=3)
    for taken, result in enumerate(results):
        assert result == taken
        assert len(begun) <= taken + 1 + 2 * 3
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda task: 1 / (5 - task), range(100), threads=3))


def test_who_is_not_finite_is_dropped_and_the_rest_goes_on(U):
    bad = U.clone()
    bad[1, 3] = torch.nan
    bad[4, :2] = torch.inf
    sizes, losses = torch.tensor([1.0, 9, 2, 3, 9]), [0.1, 9.0, 0.2, 0.3, 9.0]
    ids = ["a", "b", "c", "d", "e"]
    for rule in (Mean(), ConFREE()):
        with pytest.warns(DroppedWarning, match=r"client '[be]' is dropped: [12] of its 60 numbers are not finite"):
            outcome = rule.apply(Updates(bad, sizes=sizes, losses=losses, ids=ids))
        assert outcome.dropped == {"b": "1 of its 60 numbers are not finite", "e": "2 of its 60 numbers are not finite"}
        assert outcome.ids == ("a", "c", "d")
        torch.testing.assert_close(outcome.update, rule(U[[0, 2, 3]], sizes=sizes[[0, 2, 3]]), rtol=1e-12, atol=1e-12)
    u = Updates(bad, sizes=sizes, losses=losses, ids=ids)
    with pytest.warns(DroppedWarning):
        assert len(u) == 3
    assert u.sizes.tolist() == [1, 2, 3]
    assert u.losses.tolist() == [0.1, 0.2, 0.3]
    torch.testing.assert_close(u.row(1), U[2])
    torch.testing.assert_close(u.mix(torch.eye(3)), U[[0, 2, 3]])


def test_a_length_that_overflows_is_dropped(U):
    rows = U.float()
    rows[2] *= 1e25
    for rule in (Mean(), Projection()):
        with pytest.warns(DroppedWarning, match="client 2 is dropped: its length is beyond float32"):
            assert torch.isfinite(rule(rows)).all()


def test_a_loss_that_is_not_finite_is_dropped(U):
    with pytest.warns(DroppedWarning, match="client 3 is dropped: its loss is nan"):
        assert Updates(U, losses=[1, 1, 1, float("nan"), 1]).ids == (0, 1, 2, 4)


def test_other_shapes_are_dropped(U):
    vectors = [*U[:3], torch.zeros(7, dtype=torch.float64)]
    with pytest.warns(DroppedWarning, match=r"client 3 is dropped: it has shape \(7,\), not \(60,\)"):
        assert torch.equal(Mean()(vectors), Mean()(U[:3]))
    members = dicts(U)
    members[0] = {name: tensor for name, tensor in members[0].items() if name != "conv.bias"}
    members[1] = members[1] | {"conv.bias": torch.zeros(9, dtype=torch.float64)}
    members[2] = members[2] | {"extra": torch.zeros(1, dtype=torch.float64)}
    with pytest.warns(DroppedWarning):
        u = Updates(members)
    assert u.dropped == {
        0: "layer 'conv.bias' is missing",
        1: "layer 'conv.bias' has shape (9,), not (8,)",
        2: "layer 'extra' is not in the others",
    }
    assert u.ids == (3, 4)


def test_nobody_left_means_no_step():
    for rule in (Mean(), ConFREE(), ConFREE(scope="layer", length="mean")):
        with pytest.warns(DroppedWarning):
            outcome = rule.apply(Updates(torch.full((2, 3), torch.nan)))
        assert torch.equal(outcome.update, torch.zeros(3))
        assert outcome.coefficients.shape == (1, 0)
        assert outcome.residual == 0
        assert outcome.length_ratio.isnan().all()


def test_what_cannot_be_used_is_refused(U):
    for mistake, told in (
        (lambda: Updates([]), "no updates were given"),
        (lambda: Updates(U, sizes=[1, 2]), "sizes has 2 entries for 5 updates"),
        (lambda: Updates(U, sizes=[1, 2, 0, 1, 1]), "each must be positive"),
        (lambda: Updates(U, ids=["a"]), "ids has 1 entries for 5 updates"),
        (lambda: Updates(U, ages=[0, 1, 0, 0, 0]), "clients that are present, with age 0, come first"),
        (lambda: Updates(U[0]), r"shape \(60,\)"),
        (lambda: Updates(U, layout=Layout([("a", (7,))])), "60 columns; their layout has 7"),
        (lambda: Updates([{"steps": torch.tensor(3)}]), "torch.int64 numbers"),
    ):
        with pytest.raises(ComityError, match=told):
            mistake()


def test_state_dicts_in_state_dict_out(U):
    update = ConFREE()(dicts(U))
    assert {name: tuple(tensor.shape) for name, tensor in update.items()} == {
        layer.name: layer.shape for layer in LAYOUT.layers
    }
    torch.testing.assert_close(LAYOUT.vector(update), ConFREE()(U))
    assert repr(Updates(U, layout=LAYOUT)) == "Updates(5 of Layout(3 layers, 60 numbers))"


@pytest.mark.parametrize("rows", [range(5), range(6)], ids=["all usable", "one not"])
@pytest.mark.parametrize("size", [40, 2**16 + 7])
def test_the_mean_that_is_made_with_the_gram_matrices_is_the_mean(rows: range, size: int) -> None:
    random = torch.Generator().manual_seed(0)
    base, models = torch.randn(size, generator=random), torch.randn(6, size, generator=random)
    models[5, 3] = float("nan")
    weights = torch.linspace(0.1, 0.3, 5, dtype=torch.float64)
    found = []
    for mean in (True, False):
        u = Updates(list(models[rows]), base=base, sizes=[3.0, 1.0, 2.0, 5.0, 4.0, 2.0][: len(rows)])
        u.measure(mean)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DroppedWarning)
            found.append((u.grams, u.combine(u.shares), u.combine(weights)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("threads", [1, 3])
def test_models_less_their_base_are_updates(threads: int) -> None:
    random = torch.Generator().manual_seed(0)
    layout = Layout([("w", (40, 1000)), ("b", (40,))])
    base = torch.randn(layout.size, generator=random)
    models = [base + torch.randn(layout.size, generator=random) for _ in range(5)]
    models[3][7] = float("nan")
    based = Updates(models, layout=layout, base=base, threads=threads)
    plain = Updates(torch.stack(models) - base, layout=layout)
    for u in (based, plain):
        u.measure()
        with pytest.warns(DroppedWarning):
            assert len(u) == 4
    assert torch.equal(based.grams, plain.grams)
    assert based.ids == plain.ids == (0, 1, 2, 4)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    assert torch.equal(based.combine(weights), plain.combine(weights))
    assert torch.equal(based.row(3), models[4] - base)
    joined = based.joined(["old"], torch.ones(1, layout.size), torch.tensor([1]))
    with pytest.warns(DroppedWarning):
        assert len(joined) == 5
    assert torch.equal(joined.row(4), torch.ones(layout.size))  # what is remembered is an update already
    assert torch.equal(joined.grams[:, :4, :4], plain.grams)
    few = joined.only([1, 4])
    assert few.ids == (1, "old")
    torch.testing.assert_close(few.gram, joined.gram[[1, 4]][:, [1, 4]], rtol=1e-6, atol=0)  # float32 products
    assert torch.equal(few.row(0), models[1] - base)
