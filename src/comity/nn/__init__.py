"""Models: the architectures of the papers, and a module as one vector."""

from comity.nn._chain import Descent, FeatureLoss, Step, chain_of
from comity.nn._characters import CharCNN
from comity.nn._compiled import can_compile, descend, outputs
from comity.nn._foreign import draws_random_numbers, foreign, with_head
from comity.nn._model import BUFFERS, Model, gradients_of
from comity.nn._net import Net
from comity.nn._resnet import NFResNet18, ResNet4, ResNet10, ResNet18, ResNet34
from comity.nn._small import CNN, MLP, CNN1d, CNNFedPG, LeNet5, Logistic
from comity.nn._vit import ViTTiny

MODELS = {
    "logistic": Logistic,
    "mlp": MLP,
    "cnn1d": CNN1d,
    "char-cnn": CharCNN,
    "lenet5": LeNet5,
    "cnn": CNN,
    "cnn-fedpg": CNNFedPG,
    "resnet4": ResNet4,
    "resnet10": ResNet10,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "nf-resnet18": NFResNet18,
    "vit-tiny": ViTTiny,
}
"""Models by their command-line name."""

# fmt: off
__all__ = [
    # a module as one vector
    "Model", "Net", "BUFFERS", "gradients_of", "foreign", "with_head", "draws_random_numbers",
    # plain SGD without autograd
    "FeatureLoss", "Step", "Descent", "chain_of", "can_compile", "descend", "outputs",
    # the architectures
    "MODELS", "Logistic", "MLP", "CNN", "CNN1d", "CNNFedPG", "CharCNN", "LeNet5", "NFResNet18", "ResNet4", "ResNet10",
    "ResNet18", "ResNet34", "ViTTiny",
]
# fmt: on
