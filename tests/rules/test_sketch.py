"""Sketches: linear, unbiased, with the error that the formula says, and the same bits wherever they are made."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_families import quick

from comity import ComityError
from comity._layout import Layout
from comity.rules import CALM, MGDA, ConFREE, FedFV, LayerSketch, Sketch, SketchedUpdates, Updates

LAYOUT = Layout([("wide", (70, 50)), ("bias", (7,)), ("folded", (3, 1500))])  # buckets of k = 128: 2,048
KEY = b"key"


def rows(count: int, seed: int = 0, size: int = LAYOUT.size) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


@settings(quick, max_examples=8)
@given(seed=st.integers(0, 99), a=st.floats(-3, 3), k=st.sampled_from([1, 5, 64]))
def test_it_is_linear(seed, a, k):
    x, y = rows(2, seed).double()
    one, two, both = (Sketch(k).sketch(vector, LAYOUT, KEY) for vector in (x, y, x + a * y))
    torch.testing.assert_close(both, one + a * two, rtol=1e-12, atol=1e-10)
    assert one.shape == (3, k)


def test_products_are_unbiased_and_have_the_standard_error_of_the_formula():
    layout, sketch, draws = Layout([("folded", (2000,))]), Sketch(32), 600  # 512 buckets: four blocks
    Q = torch.linalg.qr(rows(2, 3, 2000).T)[0].T
    wanted = torch.tensor([0.0, 0.6, -0.9])
    vectors = torch.cat((Q[:1], wanted[:, None] * Q[0] + (1 - wanted[:, None] ** 2).sqrt() * Q[1]))
    maps = (LayerSketch(sketch.k, 0, layout.layers[0], f"{i}".encode(), 1) for i in range(draws))
    sketches = (drawn.sketched(lambda some, columns: vectors[some, columns], 4, 1) for drawn in maps)
    products = torch.stack([seen[1:] @ seen[0] for seen in sketches])
    error = torch.tensor([sketch.error(cosine) for cosine in wanted.tolist()])
    assert ((products.mean(0) - wanted).abs() < 3 * error / math.sqrt(draws)).all()
    # buckets add 1/16 to the variance, and the standard deviation of so many has an error of 1 in √(2 draws)
    assert ((products.std(0) / error - math.sqrt(1 + 1 / 16)).abs() < 3 / math.sqrt(2 * draws)).all()
    within = ((products - wanted).abs() < 1.96 * error).double().mean(0)
    assert ((within - 0.943).abs() < 3 * math.sqrt(0.95 * 0.05 / draws)).all()


def test_the_size_follows_from_the_error_wanted():
    assert Sketch().k == Sketch.of(1024).k == 1024
    assert Sketch.of(1 / 32).k == 1024
    for error in (0.5, 0.1, 0.03):
        k = Sketch.of(error).k
        assert Sketch(k).error() <= error < Sketch(k - 1).error()
    assert Sketch(50).error(1.0) == pytest.approx(0.2)
    for wrong in (0, -3, 1.5, math.nan):
        with pytest.raises(ComityError, match="sketch must be"):
            Sketch.of(wrong)


def test_a_layer_of_few_numbers_is_turned_and_its_products_are_exact():
    x = rows(6).double()
    seen = Updates(x, sketch=Sketch(128), key=KEY, layout=LAYOUT)
    bias = x[:, 3500:3507]
    torch.testing.assert_close(seen.grams[1], bias @ bias.T, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(seen._seen._take(slice(128, 135)), bias, atol=0.1)  # and does not travel as it is


def test_a_key_is_a_map_and_another_key_another():
    x = rows(1)[0]
    one = Sketch(64).sketch(x, LAYOUT, KEY)
    assert torch.equal(one, Sketch(64).sketch(x, LAYOUT, KEY))
    assert not torch.isclose(one, Sketch(64).sketch(x, LAYOUT, b"other"), rtol=1e-4)[:, :7].any()
    assert not torch.isclose(
        one[0], Sketch(64).sketch(x, Layout([("a", (1,)), ("b", (LAYOUT.size - 1,))]), KEY)[1]
    ).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_bits_alone_among_others_and_on_any_number_of_threads(dtype):
    x = rows(130).to(dtype)
    seen = [Updates(x, sketch=Sketch(128), key=KEY, layout=LAYOUT, threads=threads)._seen for threads in (1, 2, 4)]
    assert torch.equal(seen[0].grams, seen[1].grams)
    assert torch.equal(seen[0].grams, seen[2].grams)
    alone = torch.stack([Sketch(128).sketch(row, LAYOUT, KEY).flatten() for row in x[[0, 63, 64, 129]]])
    assert torch.equal(alone, seen[0]._tensors[0][[0, 63, 64, 129]])
    base = rows(1, 9)[0].to(dtype)
    models = Updates(x + base, sketch=Sketch(128), key=KEY, layout=LAYOUT, base=base)
    updates = Updates((x + base) - base, sketch=Sketch(128), key=KEY, layout=LAYOUT)
    assert torch.equal(models.gram, updates.gram)


@quick
@given(cuts=st.lists(st.integers(3508, 8006), unique=True, max_size=6))
def test_columns_may_come_in_any_pieces(cuts):
    x, layer = rows(3).double(), LAYOUT.layers[2]
    drawn = LayerSketch(128, 2, layer, KEY)
    folded = drawn.start(x)
    edges = [layer.start, *sorted(cuts), layer.stop]
    for start, stop in pairwise(edges):
        drawn.fold(folded, x[:, start:stop], start)
    whole = drawn.sketched(lambda some, columns: x[some, columns], 3)
    torch.testing.assert_close(drawn.finish(folded), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", [ConFREE(), ConFREE(scope="layer"), CALM(), MGDA(), FedFV(tau=0)], ids=repr)
def test_rules_see_sketches_as_they_see_updates(rule):
    layout = Layout([("wide", (30, 11)), ("bias", (7,))])
    x = rows(12, size=layout.size).double() + 0.3
    losses = torch.linspace(1, 2, 12)
    exact = rule.apply(Updates(x, layout=layout, losses=losses))
    turned = Sketch(330)  # as long as the longest layer, so each is only turned
    sketches = [turned.sketch(row, layout, KEY) for row in x]
    found = rule.coefficients(SketchedUpdates(sketches, turned, layout, losses=losses)).coefficients
    torch.testing.assert_close(found, exact.coefficients, rtol=1e-8, atol=1e-10)
    seen = rule.apply(Updates(x, sketch=Sketch(256), key=KEY, layout=layout, losses=losses))
    assert seen.residual <= rule.target
    torch.testing.assert_close(seen.update, Updates(x, layout=layout).combine(seen.coefficients))
    assert not torch.allclose(seen.coefficients, exact.coefficients)
    assert torch.cosine_similarity(seen.update, exact.update, dim=0) > 0.97


def test_identical_updates_have_identical_sketches():
    x = rows(1)[0]
    seen = ConFREE().apply(Updates(x.expand(5, -1), sketch=Sketch(32), key=KEY, layout=LAYOUT))
    torch.testing.assert_close(seen.update / seen.update.norm(), x / x.norm())
    assert torch.equal(seen.updates.gram, seen.updates.gram[0, 0].expand(5, 5))


def test_a_broken_update_is_named_and_the_others_stay():
    x = rows(5)
    x[2, 17] = math.nan
    seen = Updates(x, sketch=Sketch(64), key=KEY, layout=LAYOUT)
    with pytest.warns(match="client 2 is dropped: 1 of its 8,007"):
        ids = seen.ids
    assert ids == (0, 1, 3, 4)
    assert torch.equal(seen.gram, Updates(x[[0, 1, 3, 4]], sketch=Sketch(64), key=KEY, layout=LAYOUT).gram)


def test_what_sketches_cannot_do_is_refused():
    with pytest.raises(ComityError, match=r"shape \(2, 64\); with this layout they are 3 layers of 64 numbers"):
        SketchedUpdates(torch.zeros(4, 2, 64), Sketch(64), LAYOUT)
    seen = SketchedUpdates(torch.ones(4, 3, 64), Sketch(64), LAYOUT, losses=torch.ones(4))
    with pytest.raises(ComityError, match="sketches of two rounds cannot be compared"):
        FedFV(tau=1).apply(seen)
