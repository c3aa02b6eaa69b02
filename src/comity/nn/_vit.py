"""The vision transformer."""

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comity._errors import ComityError
from comity._options import Count, check_arguments
from comity.nn._net import Net

_MOST_PATCHES = 1024  # attention is quadratic in them


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        qkv: Tensor = self.qkv(x)
        q, k, v = qkv.reshape(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if torch.is_autocast_enabled("cpu"):  # the derivative of torch's own attention is slow in bfloat16
            mixed = (q @ k.transpose(2, 3) * q.shape[3] ** -0.5).softmax(3) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        y: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return y


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        mlp = {"fc1": nn.Linear(width, 4 * width), "gelu": nn.GELU(), "fc2": nn.Linear(4 * width, width)}
        self.mlp = nn.Sequential(OrderedDict(mlp))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class _Body(nn.Module):
    def __init__(
        self, channels: int, size: int | None, patches: int, patch: int, depth: int, width: int, heads: int
    ) -> None:
        super().__init__()
        self.size = size
        self.patch = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, 1 + patches, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        if self.size is not None:
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False)
        tokens: Tensor = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], dim=1) + self.position
        features: Tensor = self.norm(self.blocks(x)[:, 0])
        return features


class ViTTiny(Net):
    """ViT-Tiny (width 192, 3 heads, class token), the transformer that FedCALM trains from scratch.

    Dosovitskiy et al., ICLR 2021, in the size of Touvron et al., ICML 2021; no dropout. FedCALM's has 16-pixel patches
    of 224×224 images, which is what this becomes at that size (``size=224``).

    Options:
        size: scale images to this many pixels per side first; by default they are taken as they are
        patch: pixels per side, a divisor of height and width; by default the largest up to 16 that leaves at least 7
            patches a side (16 at 224, 8 at 64, 4 at 32 and 28), or 2 for smaller images
        depth: number of blocks
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        patch: Count | None = None,
        depth: Count = 12,
        size: Count | None = None,
    ) -> None:
        check_arguments(ViTTiny, "model.", patch=patch, depth=depth, size=size)
        super().__init__(shape, classes)
        C, H, W = shape if size is None else (shape[0], size, size)
        most = min(16, max(2, min(H, W) // 7))
        patch = max(p for p in range(1, most + 1) if math.gcd(H, W) % p == 0) if patch is None else patch
        if H % patch or W % patch:
            raise ComityError(f"model.patch must divide the image's sides, {H}×{W}, got {patch}")
        patches = (H // patch) * (W // patch)
        if patches > _MOST_PATCHES:
            cut = f"{H}×{W} images into {patches} patches of {patch}×{patch}"
            raise ComityError(f"ViTTiny would cut {cut}, the most is {_MOST_PATCHES}; resize or crop the images")
        self.body = _Body(C, size, patches, patch, depth, width=192, heads=3)
        self.head = nn.Linear(192, classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.body.token, std=0.02)
        nn.init.trunc_normal_(self.body.position, std=0.02)
