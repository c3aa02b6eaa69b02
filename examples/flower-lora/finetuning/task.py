"""The model, its adapters and the text: nothing is fetched from anywhere.

The base model is made from a configuration, with random weights that are the same everywhere; with a real one the first
line of ``build`` is ``AutoModelForCausalLM.from_pretrained(...)``. LoRA puts two small matrices beside each linear
layer: A, which turns its input into a few numbers, and B, which turns these into a change of its output.
"""

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from finetuning.texts import TEXTS

CHARACTERS = 128
"""Tokens are the characters of ASCII."""
WINDOW = 64
PERSONAL = "lora_B"
"""Matrices with this in their name stay at each site (FedSA-LoRA); the others are shared."""


def build() -> PeftModel:
    torch.manual_seed(0)  # the same base, and the same first adapters, at every site and on the server
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=CHARACTERS,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=WINDOW,
            tie_word_embeddings=False,
            initializer_range=0.2,
        )
    )
    return get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))


def adapters(model: PeftModel, personal: bool) -> dict[str, Tensor]:
    """The personal matrices, or the shared ones."""
    return {name: t for name, t in get_peft_model_state_dict(model).items() if (PERSONAL in name) == personal}


def put(model: PeftModel, matrices: dict[str, Tensor]) -> None:
    """Some of the adapters' matrices into the model."""
    set_peft_model_state_dict(model, get_peft_model_state_dict(model) | matrices)


def load_data(site: int) -> tuple[Tensor, Tensor]:
    """The site's text as windows of tokens: four fifths to learn from, the last fifth to test with."""
    tokens = torch.tensor([ord(character) for character in TEXTS[site]])
    cut = len(tokens) * 4 // 5
    return tokens[:cut].unfold(0, WINDOW, 4), tokens[cut:].unfold(0, WINDOW, WINDOW)


def train(model: PeftModel, windows: Tensor, steps: int, lr: float, seed: int) -> float:
    """Fit the adapters; the mean loss of a character on the way."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    random = torch.Generator().manual_seed(seed)
    model.train()
    total = 0.0
    for _ in range(steps):
        batch = windows[torch.randint(len(windows), (16,), generator=random)]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / max(1, steps)


@torch.no_grad()
def test(model: PeftModel, windows: Tensor) -> float:
    """The mean loss of a character."""
    model.eval()
    return float(model(input_ids=windows, labels=windows).loss)
