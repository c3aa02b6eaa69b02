"""PEFT's adapters: its names, its configuration, factor by factor and through the products."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from comity import ComityError
from comity.files import aggregate, inspect
from comity.files._checkpoint import open_checkpoint
from comity.rules import CALM, ConFREE, DroppedWarning, Mean, Rule, Updates

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "rank_pattern": {}, "alpha_pattern": {}}
MODULES = [f"base_model.model.model.layers.{k}.self_attn.{name}_proj" for k in range(2) for name in "qv"]
INPUTS, OUTPUTS = 24, 18


def adapter(
    seed: int, like: dict[str, Tensor] | None = None, rank: int = 4, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """As `get_peft_model` makes one, or as a client leaves it: B begins with 0."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for module in MODULES:
        A, B = torch.randn(rank, INPUTS, generator=generator), 0.3 * torch.randn(OUTPUTS, rank, generator=generator)
        if like is not None:
            A, B = like[f"{module}.lora_A.weight"].float() + 0.1 * A, like[f"{module}.lora_B.weight"].float() + B
        found |= {f"{module}.lora_A.weight": A.to(dtype), f"{module}.lora_B.weight": B.to(dtype)}
    return found


def save_adapter(folder: Path, tensors: dict[str, Tensor], suffix: str = ".safetensors", **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config, indent=2))
    (folder / "README.md").write_text("made in a test")
    if suffix == ".bin":
        torch.save(tensors, folder / "adapter_model.bin")
    else:
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def federation(
    folder: Path, count: int = 3, **config: Any
) -> tuple[Path, list[Path], dict[str, Tensor], list[dict[str, Tensor]]]:
    base = adapter(0)
    base |= {name: torch.zeros_like(value) for name, value in base.items() if "lora_B" in name}
    clients = [adapter(i + 1, base) for i in range(count)]
    files = [save_adapter(folder / f"clinic-{i}", client, **config) for i, client in enumerate(clients)]
    return save_adapter(folder / "base", base, **config), files, base, clients


def load(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def factors(tensors: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"]) for module in MODULES]


def products(tensors: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """ΔW of every module, in float64."""
    pairs = zip(MODULES, factors(tensors), strict=True)
    return {module: scale * B.double() @ A.double() for module, (A, B) in pairs}


def test_factor_by_factor(tmp_path: Path) -> None:
    start, files, base, clients = federation(tmp_path / "in")
    done = aggregate(start, files, tmp_path / "new", ConFREE(0.4), only=["lora_*"])
    update = ConFREE(0.4)([{name: client[name] - base[name] for name in sorted(base)} for client in clients])
    found = load(tmp_path / "new")
    assert found.keys() == base.keys()
    for name, value in update.items():
        torch.testing.assert_close(found[name], base[name] + value)
    assert (tmp_path / "new" / "adapter_config.json").read_text() == (start / "adapter_config.json").read_text()
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in start.iterdir()}
    assert done.ids == ("clinic-0", "clinic-1", "clinic-2")
    assert not done.lost


@pytest.mark.parametrize(
    ("config", "alpha_of_2", "power"),
    [
        ({}, "none", 1),
        ({"use_rslora": True}, "none", 0.5),
        ({"alpha_pattern": {"self_attn.v_proj": 2}}, "v_proj", 1),
        ({"alpha_pattern": {"^nothing": 3, "^model.layers.*": 2}}, "layers", 1),
    ],
)
@pytest.mark.parametrize(
    ("rule", "rank", "new_rank"),
    # Nothing is lost with "auto". The base adds nothing where coefficients add up to 1.
    [(CALM(), None, 4), (ConFREE(0.4), "auto", 16), (Mean(), "auto", 12), (ConFREE(0.4), 2, 2), (ConFREE(0.4), 20, 20)],
)
def test_through_products(
    rule: Rule, rank: Any, new_rank: int, config: dict[str, Any], alpha_of_2: str, power: float, tmp_path: Path
) -> None:
    """FlexLoRA's case: every client adapts by the rank that it can afford; products can be added all the same."""

    def scale(module: str, alpha: int, rank: int) -> float:
        return float((2 if alpha_of_2 in module else alpha) / rank**power)

    folders, before_and_after = [], []
    for seed, old_rank in enumerate((4, 2, 4, 6)):
        tensors, alpha = adapter(seed, rank=old_rank), 2 + seed
        folders.append(save_adapter(tmp_path / f"{seed}", tensors, **{"r": old_rank, "lora_alpha": alpha} | config))
        before_and_after.append({m: scale(m, alpha, old_rank) * W for m, W in products(tensors, 1.0).items()})
    with pytest.raises(ComityError, match="TIES compares single numbers, not products"):
        aggregate(folders[0], folders[1:], tmp_path / "new", "TIES", lora="products", rank=rank)
    assert not (tmp_path / "new").exists()
    done = aggregate(folders[0], folders[1:], tmp_path / "new", rule, lora="products", rank=rank)
    before, *after = before_and_after
    updates = [{m: W - before[m] for m, W in each.items()} for each in after]
    update, adapted = rule(updates), open_checkpoint(tmp_path / "new").adapter
    lost, length = [], []
    for module, W in products(load(tmp_path / "new"), 1.0).items():
        assert adapted.scale(module, new_rank) == pytest.approx(scale(module, 2, 4))  # as before
        exact = before[module] + update[module]
        sigma = torch.linalg.svdvals(exact)
        best = float(sigma[new_rank:].norm() / sigma.norm())  # no matrix of this rank is nearer
        assert done.lost[module] == pytest.approx(best, rel=1e-4, abs=1e-6)
        lost.append(float((exact - scale(module, 2, 4) * W).norm()))
        assert lost[-1] / float(exact.norm()) == pytest.approx(best, rel=1e-4, abs=1e-6)
        length.append(float(exact.norm()))
    overall = torch.tensor(lost).norm() / torch.tensor(length).norm()
    assert done.lost_overall == pytest.approx(float(overall), rel=1e-4, abs=1e-9)
    assert set(done.ranks.values()) == {new_rank}
    torch.testing.assert_close(done.coefficients, rule.apply(Updates(updates)).coefficients, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("dtype", "least", "most"), [(torch.float32, 0, 1e-6), (torch.bfloat16, 1e-4, 1e-2)])
def test_rounding_counts_as_lost(dtype: torch.dtype, least: float, most: float, tmp_path: Path) -> None:
    """The product of one client has the rank that it had."""
    base = adapter(0, dtype=dtype)
    start, client = (
        save_adapter(tmp_path / f"{i}", own) for i, own in enumerate([base, adapter(1, base, dtype=dtype)])
    )
    assert least < aggregate(start, [client], tmp_path / "new", lora="products").lost_overall < most


def test_updates_of_other_ranks_and_strengths(tmp_path: Path) -> None:
    tensors = {rank: adapter(rank, rank=rank) for rank in (4, 2, 6)}
    files = [
        save_adapter(tmp_path / f"clinic-{rank}", own, r=rank, lora_alpha=3 * rank) for rank, own in tensors.items()
    ]
    done = aggregate(None, files, tmp_path / "new", "Mean", lora="products")
    for module, W in products(load(tmp_path / "new"), 3.0).items():
        exact = sum(products(own, 3.0)[module] for own in tensors.values()) / 3
        assert float((W - exact).norm() / exact.norm()) == pytest.approx(done.lost[module], rel=1e-4)
    start = save_adapter(tmp_path / "base", adapter(9))
    with pytest.raises(ComityError, match=r"clinic-2.*has shape \(2, 24\)"):
        aggregate(start, files[1:], tmp_path / "other", "Mean")
    for only in ([], ["lora_A.*"], ["lora_B.*"]):
        with pytest.raises(ComityError, match=r"clinic-4: its scale .* is 3 in .*, not 4; --lora products"):
            aggregate(start, files[:1], tmp_path / "other", "Mean", only=only)


@pytest.mark.parametrize("rank", [None, 2])
def test_other_tensors_of_an_adapter(rank: int | None, tmp_path: Path) -> None:
    """A head that is trained whole, a convolution, an embedding, a module that does not take part, a torch file."""
    prefix = "base_model.model."
    extra = {f"{prefix}score.weight": torch.ones(3, 5), f"{prefix}steps": torch.tensor([7])}
    extra |= {
        f"{prefix}conv.lora_A.weight": torch.ones(4, 5, 3, 3),
        f"{prefix}conv.lora_B.weight": torch.ones(7, 4, 1, 1),
    }
    extra |= {f"{prefix}embed.lora_embedding_A": torch.ones(4, 9), f"{prefix}embed.lora_embedding_B": torch.ones(6, 4)}
    moved = {name: value + 1 for name, value in extra.items()}
    base = save_adapter(tmp_path / "base", adapter(0) | extra, ".bin")
    client = save_adapter(tmp_path / "client", adapter(1) | moved, ".bin")
    exclude = ["layers.1.*"]
    done = aggregate(base, [client], tmp_path / "new", "Mean", lora="products", rank=rank, exclude=exclude)
    found = load(tmp_path / "new")
    names = {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in (tmp_path / "new").iterdir()} == names
    assert done.layers[0] == f"{prefix}score.weight"
    assert torch.equal(found[f"{prefix}score.weight"], torch.full((3, 5), 2.0))
    assert torch.equal(found[f"{prefix}steps"], torch.tensor([7]))
    assert found[f"{prefix}conv.lora_A.weight"].shape == (rank or 4, 5, 3, 3)
    assert found[f"{prefix}conv.lora_B.weight"].shape == (7, rank or 4, 1, 1)
    for end in ("conv.lora_{}.weight", "embed.lora_embedding_{}"):  # their products have rank 1
        A, B = (prefix + end.format(factor) for factor in "AB")
        W = found[B].flatten(1) @ found[A].flatten(1)
        torch.testing.assert_close(W, moved[B].flatten(1) @ moved[A].flatten(1), rtol=1e-4, atol=1e-4)
    for module in MODULES[2:]:
        assert torch.equal(found[f"{module}.lora_A.weight"], adapter(0)[f"{module}.lora_A.weight"])
    config = json.loads((tmp_path / "new" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 16)
    changed = ["conv", "embed", *(module.removeprefix(prefix) for module in MODULES[:2])] if rank else []
    for pattern, value in (("rank_pattern", 2), ("alpha_pattern", 8)):
        assert {key.replace("\\", ""): number for key, number in config[pattern].items()} == {
            f"^{module}": value for module in changed
        }


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rank": 3}, "--rank goes with --lora products; --lora factors"),
        ({"lora": "stack"}, r"lora must be factors \| products, got 'stack'"),
        ({"lora": "products", "rank": 0}, "rank must be at least 1, got 0"),
        ({"lora": "products", "rank": "much"}, "rank must be"),
        ({"lora": "products", "memory": 10_000}, r"of memory; .* are left for them"),
        ({"lora": "products", "rank": 3, "output": "new.safetensors"}, "must be a folder"),
        ({"lora": "products", "rank": "auto", "base": "base/adapter_model.safetensors"}, "must be a folder"),
    ],
)
def test_ranks_that_cannot_be(options: dict[str, Any], told: str, tmp_path: Path) -> None:
    start, files, *_ = federation(tmp_path)
    output, base = tmp_path / options.pop("output", "new"), tmp_path / options.pop("base", start.name)
    with pytest.raises(ComityError, match=told):
        aggregate(base, files, output, **options)
    assert not output.exists()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"peft_type": "IA3"}, r"Invalid enum value 'IA3' - at `\$.peft_type`"),
        ({"lora_alpha": None}, r"Expected `float`, got `null` - at `\$.lora_alpha`"),
        ({"lora_alpha": True}, r"Expected `float`, got `bool` - at `\$.lora_alpha`"),
        ({"lora_alpha": 0}, r"Expected `float` > 0.0 - at `\$.lora_alpha`"),
        ({"alpha_pattern": {"[": 3}}, "no regular expression"),
        ({"alpha_pattern": {"x(?i)": 3}}, "no regular expression"),
        ({"alpha_pattern": {f"a{{{'9' * 30}}}": 3}}, "no regular expression"),
        ({"alpha_pattern": {"(a+)+": 3}}, "repeats a group, or too much, to be tried"),
        ({"alpha_pattern": {".*.*.*.*x": 3}}, "repeats a group, or too much, to be tried"),
        ({"alpha_pattern": [1]}, r"got `array` - at `\$.alpha_pattern`"),
    ],
)
def test_bad_configurations(config: dict[str, Any], told: str, tmp_path: Path) -> None:
    start, files, base, _ = federation(tmp_path / "in")
    bad = save_adapter(tmp_path / "in" / "bad", base, **config)
    with pytest.raises(ComityError, match=told) as error:
        aggregate(start, [*files, bad], tmp_path / "new", lora="products")
    assert str(bad / "adapter_config.json") in str(error.value)
    with pytest.warns(DroppedWarning):
        done = aggregate(start, [*files, bad], tmp_path / "new", lora="products", skip_bad=True)
    assert list(done.dropped) == ["bad"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({f"{MODULES[0]}.lora_B.weight": torch.ones(OUTPUTS, 3)}, "have no product"),
        ({f"{MODULES[0]}.lora_B.weight": torch.ones(5, 4)}, r"has shape \(5, 24\), not \(18, 24\)"),
        ({f"{MODULES[0]}.lora_A.weight": torch.full((4, INPUTS), torch.nan)}, "are not finite"),
        ({f"{MODULES[0]}.lora_A.weight": None}, "is missing"),
    ],
)
def test_bad_factors(change: dict[str, Tensor | None], told: str, tmp_path: Path) -> None:
    start, files, _, clients = federation(tmp_path / "in")
    tensors = {name: value for name, value in (clients[0] | change).items() if value is not None}
    bad = save_adapter(tmp_path / "in" / "bad", tensors)
    with pytest.raises(ComityError, match=told):
        aggregate(start, [*files, bad], tmp_path / "new", lora="products")
    with pytest.warns(DroppedWarning, match=told):
        done = aggregate(start, [*files, bad], tmp_path / "new", "Mean", lora="products", skip_bad=True)
    expected = aggregate(start, files, tmp_path / "other", "Mean", lora="products")
    assert done.lost == expected.lost


def test_dora_is_more_than_its_product(tmp_path: Path) -> None:
    start, files, *_ = federation(tmp_path / "in", use_dora=True)
    with pytest.raises(ComityError, match="use --lora factors"):
        aggregate(start, files, tmp_path / "new", lora="products")
    aggregate(start, files, tmp_path / "new", lora="factors")


def test_inspected_by_products_a_small_difference_of_large_ones_keeps_its_digits(tmp_path: Path) -> None:
    """Clients that moved by 1e-6 of a base whose factors are large are distinguished as in exact arithmetic."""
    base = {name: 1e6 * value.double() for name, value in adapter(0).items()}
    clients = [{name: value + 1e-6 * adapter(i + 1)[name] for name, value in base.items()} for i in range(3)]
    start, *files = (save_adapter(tmp_path / f"{i}", tensors) for i, tensors in enumerate([base, *clients]))
    found = inspect(start, files, lora="products")
    rows = [[], [], []]
    for row, own in zip(rows, clients, strict=True):
        for (A, B), (old_A, old_B) in zip(factors(own), factors(base), strict=True):
            row.append(((B - old_B) @ A + old_B @ (A - old_A)).flatten())  # is B A - old_B old_A
    U = torch.nn.functional.normalize(torch.stack([torch.cat(row) for row in rows]))
    torch.testing.assert_close(found.cosines, U @ U.mT, rtol=1e-9, atol=1e-9)
    assert found.layers == tuple(MODULES)
    assert found.numbers == (INPUTS * OUTPUTS,) * 4
