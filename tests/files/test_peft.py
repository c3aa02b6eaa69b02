"""Adapters that PEFT made and trained, merged and given back to it: the model does what the rule says, to rounding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from comity.files import aggregate

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'comity[lora]'")
peft = pytest.importorskip("peft", reason="peft is not installed: pip install 'comity[lora]'")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # libraries warn of their own matters

WORDS = 40


def tiny(kind: str) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if kind == "gpt2":  # its weights have their inputs first
        sizes = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
        return GPT2LMHeadModel(GPT2Config(**sizes, tie_word_embeddings=False)).eval()
    sizes = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 16}
    config = LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
    return LlamaForCausalLM(config).eval()


def lora(kind: str, rank: int) -> Any:
    modules = ["c_attn", "wte"] if kind == "gpt2" else ["q_proj", "v_proj", "embed_tokens"]
    options: dict[str, Any] = {"fan_in_fan_out": True}
    if kind == "llama":
        options = {"use_rslora": True, "alpha_pattern": {"v_proj": 3}, "rank_pattern": {"q_proj": rank + 1}}
    return peft.LoraConfig(r=rank, lora_alpha=8, target_modules=modules, **options)


def trained(folder: Path, kind: str, rank: int, seed: int, start: Path | None) -> tuple[Path, dict[str, Tensor]]:
    """An adapter after a few steps (after none with a seed of 0), and what it adds to each weight, as PEFT has it."""
    wrapped = (
        peft.get_peft_model(tiny(kind), lora(kind, rank))
        if start is None
        else peft.PeftModel.from_pretrained(tiny(kind), start, is_trainable=True)
    )
    torch.manual_seed(seed)
    steps = torch.optim.Adam([p for p in wrapped.parameters() if p.requires_grad], 0.02)
    for _ in range(5 if seed else 0):
        words = torch.randint(WORDS, (4, 12))
        steps.zero_grad()
        wrapped(input_ids=words, labels=words).loss.backward()
        steps.step()
    wrapped.save_pretrained(folder, save_embedding_layers=False)
    layers = {name: layer for name, layer in wrapped.named_modules() if hasattr(layer, "get_delta_weight")}
    return folder, {name: layer.get_delta_weight("default").detach() for name, layer in layers.items()}


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    return model(torch.arange(WORDS).view(4, 10)).logits


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("ranks", [(4, 4, 4), (2, 4, 6)], ids=["one rank", "mixed ranks"])
def test_the_merged_model_is_the_base_plus_the_combined_products(
    kind: str, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    base, start = trained(tmp_path / "base", kind, 4, 9, None)
    same = len(set(ranks)) == 1  # those who began with another rank cannot have begun with this base
    clients = [
        trained(tmp_path / f"clinic-{i}", kind, rank, i + 1, base if same else None) for i, rank in enumerate(ranks)
    ]
    done = aggregate(base, [folder for folder, _ in clients], tmp_path / "new", "ConFREE", lora="products", rank="auto")
    assert done.lost_overall < 1e-6

    expected = tiny(kind)
    for name, before in start.items():
        row = done.coefficients.expand(len(done.layers), -1)[done.layers.index(name)].float()
        update = sum(x * (delta[name] - before) for x, (_, delta) in zip(row, clients, strict=True))
        expected.get_parameter(f"{name.removeprefix('base_model.model.')}.weight").data += before + update
    model = tiny(kind)
    untouched = logits(model)
    found = logits(peft.PeftModel.from_pretrained(model, tmp_path / "new").eval())
    torch.testing.assert_close(found, logits(expected), rtol=0, atol=1e-5)
    assert (found - untouched).abs().max() > 0.1  # the adapters do something
