"""Every architecture on every kind of image, and its published size."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comity._errors import ComityError
from comity.nn import CNN, MLP, CharCNN, CNN1d, CNNFedPG, LeNet5, Logistic, Net, ViTTiny
from comity.nn._resnet import NFResNet18, ResNet4, ResNet10, ResNet18, ResNet34, _FreeBlock, _StandardConv

ALL = [MLP, LeNet5, CNN, CNNFedPG, ResNet4, ResNet10, ResNet18, ResNet34, NFResNet18, ViTTiny]
BATCHNORM = [ResNet4, ResNet10, ResNet18, ResNet34]
SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 224, 224)]
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "models.md"


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def on_paper(kind: type[Net], *args: object, **options: object) -> Net:
    """A net with shapes and no numbers."""
    with torch.device("meta"):
        return kind(*args, **options)


def size(net: Net) -> int:
    return sum(p.numel() for p in net.parameters())


def small(kind: type[Net]) -> Net:
    return kind((1, 8, 8), 5, depth=3) if kind is ViTTiny else kind((1, 8, 8), 5)


VECTORS_AND_SERIES = [
    (CharCNN, (58,)),
    (Logistic, (5,)),
    (MLP, (5,)),
    (MLP, (2, 9)),
    (CNN1d, (2, 9)),
    (CNN1d, (1, 4)),
    (CNN1d, (3, 999)),
]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [*((kind, shape) for kind in ALL for shape in (*SHAPES, (2, 17, 30), (1, 4, 4))), *VECTORS_AND_SERIES],
)
def test_any_sample_and_class_count(kind: type[Net], shape: tuple[int, ...]) -> None:
    net = on_paper(kind, shape, 7)
    x = torch.empty(3, *shape, device="meta")
    assert net.body(x).shape == (3, net.head.in_features)
    assert net(x).shape == (3, 7)


@pytest.mark.parametrize("kind", ALL)
def test_one_step(kind: type[Net]) -> None:
    """Head on body, no random numbers drawn, and every layer feels the loss."""
    net, x, y = small(kind), torch.randn(4, 1, 8, 8), torch.arange(4)
    state = torch.get_rng_state()
    logits = net(x)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert logits.isfinite().all()
    for name, p in net.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name
    net.eval()
    with torch.no_grad():
        assert torch.equal(net(x), net.head(net.body(x)))


@pytest.mark.parametrize("kind", [LeNet5, CNN, CNNFedPG, ResNet10, NFResNet18, ViTTiny])
def test_channels_last_is_the_same_net(kind: type[Net]) -> None:
    net, x = small(kind).eval(), torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        plain = net(x)
        turned = net.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(turned, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ALL)
def test_parts_buffers_and_repr(kind: type[Net]) -> None:
    net = on_paper(kind, (3, 32, 32), 7)
    assert type(net.head) is nn.Linear
    assert [name for name, _ in net.named_children()] == ["body", "head"]
    assert [name for name, _ in net.named_parameters()][-2:] == ["head.weight", "head.bias"]
    integers = {name.split(".")[-1] for name, t in net.state_dict().items() if not t.is_floating_point()}
    assert integers == ({"num_batches_tracked"} if kind in BATCHNORM else set())
    assert bool(list(net.buffers())) == (kind in BATCHNORM)
    first, second, *_ = repr(net).splitlines()
    assert (first, second) == (f"{kind.__name__}(", f"  3×32×32, 7 classes, {size(net):,} parameters")


def test_without_running_statistics_there_are_no_buffers() -> None:
    net = on_paper(ResNet10, (3, 32, 32), 10, running=False)
    assert not list(net.buffers())
    assert size(net) == size(on_paper(ResNet10, (3, 32, 32), 10))


@pytest.mark.parametrize(
    ("kind", "shape", "classes", "count"),
    [
        (Logistic, (24,), 2, 50),
        (CharCNN, (290,), 29, 89_389),
        (CNN1d, (6, 50), 7, 77_863),
        (CNN1d, (6, 5000), 7, 77_863),  # however long
        (MLP, (1, 28, 28), 10, 199_210),  # McMahan et al., AISTATS 2017: "199,210 total parameters"
        (LeNet5, (1, 32, 32), 10, 61_706),
        (LeNet5, (1, 28, 28), 10, 61_706),
        (CNN, (1, 28, 28), 10, 582_026),  # PFLlib's FedAvgCNN
        (CNN, (3, 32, 32), 10, 878_538),
        (CNNFedPG, (3, 32, 32), 10, 797_962),
        (ResNet18, (3, 224, 224), 1000, 11_689_512),  # torchvision
        (ResNet34, (3, 224, 224), 1000, 21_797_672),
        (ViTTiny, (3, 224, 224), 1000, 5_717_416),  # timm's vit_tiny_patch16_224
    ],
)
def test_published_sizes(kind: type[Net], shape: tuple[int, int, int], classes: int, count: int) -> None:
    assert size(on_paper(kind, shape, classes)) == count


def test_sizes_in_the_documentation() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \|.*?\| ([\d,]+) \|", DOCS.read_text(encoding="utf-8"), flags=re.M))
    assert told == {kind.__name__: f"{size(on_paper(kind, (3, 32, 32), 10)):,}" for kind in (*ALL, Logistic)}


@pytest.mark.parametrize(("kind", "layers"), [(ResNet4, 4), (ResNet10, 10), (ResNet18, 18), (ResNet34, 34)])
def test_resnets_have_the_layers_they_are_named_for(kind: type[Net], layers: int) -> None:
    names = [name for name, p in on_paper(kind, (3, 32, 32), 10).named_parameters() if p.ndim > 1]
    assert len([name for name in names if "downsample" not in name]) == layers


def test_resnet_names_are_torchvisions() -> None:
    names = [name for name, _ in on_paper(ResNet10, (3, 32, 32), 10).named_parameters()]
    assert names[:4] == ["body.conv1.weight", "body.bn1.weight", "body.bn1.bias", "body.layer1.0.conv1.weight"]
    # FedCALM, Figure 7: "the last three layers", Layer3.DS0.weight, Layer3.DS1.weight, Layer3.DS1.bias, then the head
    assert [name.removeprefix("body.layer4.0.downsample.") for name in names[-5:-2]] == [
        "0.weight",
        "1.weight",
        "1.bias",
    ]


@pytest.mark.parametrize(
    ("side", "stem", "sides"),
    [
        (8, "auto", [8, 4, 2, 2]),
        (32, "auto", [32, 16, 8, 4]),
        (64, "auto", [16, 8, 4, 2]),
        (32, "imagenet", [8, 4, 2, 1]),
        (64, "small", [64, 32, 16, 8]),
        (224, "auto", [56, 28, 14, 7]),
    ],
)
def test_resnet_stem(side: int, stem: str, sides: list[int]) -> None:
    x, seen = torch.empty(1, 3, side, side, device="meta"), []
    for name, layer in on_paper(NFResNet18, (3, side, side), 10, stem=stem).body.named_children():
        x = layer(x)
        if name.startswith("layer"):
            seen.append(x.shape[-1])
    assert seen == sides


@pytest.mark.parametrize("kind", [ResNet4, ResNet10])
def test_a_batch_of_one_small_image_trains(kind: type[Net]) -> None:
    assert kind((1, 8, 8), 3)(torch.randn(1, 1, 8, 8)).isfinite().all()


def test_pooling_before_relu_is_pooling_after() -> None:
    net, x = CNN((3, 32, 32), 10), torch.randn(2, 3, 32, 32)
    body = dict(net.body.named_children())
    y = F.max_pool2d(F.relu(body["conv1"](x)), 2)
    y = F.max_pool2d(F.relu(body["conv2"](y)), 2)
    y = F.relu(body["fc1"](y.flatten(1)))
    torch.testing.assert_close(net(x), net.head(y))


def test_normaliser_free_net_keeps_the_variance() -> None:
    """Each block's input has the variance it is divided by, from the image to the last stage."""
    net = NFResNet18((3, 32, 32), 10)
    assert not any(isinstance(m, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm) for m in net.modules())
    blocks = [m for m in net.modules() if isinstance(m, _FreeBlock)]
    assert [b.beta**2 for b in blocks] == pytest.approx([1, 1.04, 1.08, 1.04, 1.08, 1.04, 1.08, 1.04])
    ratios: list[float] = []

    def note(block: _FreeBlock, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001
        ratios.append((inputs[0].var() / block.beta**2).item())

    for block in blocks:
        block.register_forward_hook(note)
    x = torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        out = net(x)
        assert torch.equal(net.eval()(x), out)
    assert len(ratios) == 2 * 8
    assert all(0.7 < ratio < 1.3 for ratio in ratios), ratios


def test_weight_standardisation() -> None:
    """Unit variance in, unit variance out after a ReLU; a filter's own mean and scale do not matter."""
    conv = _StandardConv(64, 64, 3, 1)
    x = F.relu(torch.randn(16, 64, 12, 12))
    with torch.no_grad():
        y = conv(x)
        assert conv.scale == pytest.approx(1.7139588594436646, abs=2e-3)  # the NFNets' constant, measured by sampling
        assert y[:, :, 1:-1, 1:-1].var().item() == pytest.approx(1, abs=0.1)
        conv.weight.mul_(3).add_(0.5)
        torch.testing.assert_close(conv(x), y, rtol=1e-3, atol=1e-3)
        conv.weight.zero_()
        assert conv(x).isfinite().all()
    assert math.prod(conv.gain.shape) == 64


@pytest.mark.parametrize(("side", "patch"), [(224, 16), (96, 12), (64, 8), (32, 4), (28, 4), (8, 2), (9, 1), (31, 1)])
def test_patches_fit_the_image(side: int, patch: int) -> None:
    net = on_paper(ViTTiny, (3, side, side), 10, depth=1)
    assert net.body.patch.kernel_size == (patch, patch)
    assert net.body.position.shape[1] == 1 + (side // patch) ** 2


def test_transformer_block_is_torchs() -> None:
    block = ViTTiny((1, 8, 8), 10, depth=1).body.blocks[0]
    torchs = nn.TransformerEncoderLayer(
        192, 3, 768, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    )
    names = {"self_attn.in_proj_": "attn.qkv.", "self_attn.out_proj.": "attn.proj.", "linear": "mlp.fc"}
    state = block.state_dict()
    for name in torchs.state_dict():
        ours = name
        for theirs, own in names.items():
            ours = ours.replace(theirs, own)
        torchs.state_dict()[name].copy_(state.pop(ours))
    assert not state
    x = torch.randn(2, 17, 192)
    torch.testing.assert_close(block(x), torchs(x), rtol=1e-4, atol=1e-5)


def test_images_may_be_scaled_to_224_first() -> None:
    net, native = ViTTiny((3, 32, 32), 5, depth=1, size=224), ViTTiny((3, 224, 224), 5, depth=1)
    assert net.body.position.shape == native.body.position.shape == (1, 197, 192)
    native.load_state_dict(net.state_dict())
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(net(x), native(F.interpolate(x, (224, 224), mode="bilinear")))


@pytest.mark.parametrize(
    ("kind", "shape", "options", "message"),
    [
        (CNN, (1, 3, 9), {}, "CNN needs images of at least 4×4 pixels, got 1×3×9"),
        (ResNet10, (1, 2, 2), {}, "ResNet10 needs images of at least 4×4 pixels, got 1×2×2"),
        (
            CNN,
            (28, 28),
            {},
            "CNN takes images of channels × height × width, all at least 1, got 28×28; for series there is cnn1d",
        ),
        (CharCNN, (30,), {}, "model.alphabet must divide the 30 features, got 29"),
        (CNN1d, (2, 3), {}, "CNN1d needs series of at least 4 steps, got 2×3"),
        (
            CNN1d,
            (7,),
            {},
            "CNN1d takes series of channels × time, all at least 1, got 7; for vectors there is logistic",
        ),
        (MLP, (0, 8, 8), {}, "all at least 1, got 0×8×8"),
        (MLP, (1, 8, 8), {"widths": (20, 0)}, "model.widths must be at least 1, got 0"),
        (MLP, (1, 8, 8), {"classes": 0}, "MLP needs at least 1 class, got 0"),
        (ResNet18, (1, 8, 8), {"stem": "large"}, "model.stem must be auto | small | imagenet, got 'large'"),
        (ViTTiny, (1, 8, 8), {"patch": 3}, "model.patch must divide the image's sides, 8×8, got 3"),
        (ViTTiny, (1, 8, 8), {"patch": 0}, "model.patch must be at least 1, got 0"),
        (ViTTiny, (1, 37, 37), {}, "ViTTiny would cut 37×37 images into 1369 patches of 1×1, the most is 1024; resize"),
        (ViTTiny, (1, 8, 8), {"depth": 0}, "model.depth must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_built(
    kind: type[Net], shape: tuple[int, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ComityError, match=re.escape(message)) as caught:
        on_paper(kind, shape, **{"classes": 10, **options})
    assert "\n" not in str(caught.value)


def test_a_character_has_the_same_embedding_at_each_place() -> None:
    net = CharCNN((4 * 5,), 3, alphabet=5)
    x = torch.nn.functional.one_hot(torch.tensor([[2, 0, 2, 4]]), 5).float().flatten(1)
    embedded = net.body[:2](x)[0, :, :, 0]  # 16 × places
    weights = net.body.embedding.weight[:, 0, 0]  # 16 × characters
    assert torch.allclose(embedded, weights[:, [2, 0, 2, 4]])
