"""A network that predicts the next character of a text."""

from collections import OrderedDict

from torch import nn

from comity._errors import ComityError
from comity._options import Count, check_arguments
from comity.nn._net import Net


class CharCNN(Net):
    """A small network for one-hot encoded text: embedding 16, conv 64 (3 characters), fc 128, head.

    Options:
        alphabet: size of the alphabet; the input has this many features per character position, in order
    """

    takes = (1,)

    def __init__(self, shape: tuple[int, ...], classes: int, alphabet: Count = 29) -> None:
        check_arguments(CharCNN, "model.", alphabet=alphabet)
        super().__init__(shape, classes)
        places, rest = divmod(shape[0], alphabet)
        if rest:
            raise ComityError(f"model.alphabet must divide the {shape[0]} features, got {alphabet}")
        self.body = nn.Sequential(
            OrderedDict(
                image=nn.Unflatten(1, (1, places, alphabet)),
                embedding=nn.Conv2d(1, 16, (1, alphabet), bias=False),  # one row per position: an embedding
                conv=nn.Conv2d(16, 64, (3, 1), padding=(1, 0)),
                act=nn.ReLU(inplace=True),
                flat=nn.Flatten(),
                fc1=nn.Linear(64 * places, 128),
                relu1=nn.ReLU(inplace=True),
            )
        )
        self.head = nn.Linear(128, classes)
