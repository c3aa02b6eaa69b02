"""``comity list``."""

import textwrap
from typing import Literal

from comity._catalogue import described
from comity._extensions import BY_OPTION
from comity.commands._command import RUN_OPTIONS, Command, page_width
from comity.config import read_yaml

Kind = Literal["methods", "rules", "guards", "extensions", "models", "data", "partitions", "examples"]


def list_(kind: Kind) -> int:
    """List what there is: methods, rules, guards, extensions, models, data sets, partitions or examples.

    The options of each are on the help page of comity run: comity run --method Ditto --help.

    Examples:
        comity list methods
        comity list examples

    Options:
        kind: methods, rules, guards, extensions, models, data, partitions or examples
    """
    if kind == "examples":
        from comity.studies import examples

        sentences = {name: " ".join(str(read_yaml(file).get("about", "")).split()) for name, file in examples().items()}
        folder = next(iter(examples().values())).parent
        note = f"comity reproduce NAME --scale desk, night or paper; the files are in {folder}"
    elif kind == "extensions":
        sentences = {f"--{each.name.replace('_', '-')}": each.help for each in RUN_OPTIONS if each.name in BY_OPTION}
        note = (
            "comity run --extension PATH applies your own, by the dotted path of a subclass of comity.engine.Extension"
        )
    else:
        one = kind if kind == "data" else kind.removesuffix("s")
        sentences = {
            each.name: each.about + (f" ({each.paper})" if each.paper and each.paper not in each.about else "")
            for each in described(one).values()
        }
        note = f"comity run --{one} NAME --help shows the options of each"
    column = 2 + max(map(len, sentences))
    for name, sentence in sentences.items():
        print(textwrap.fill(f"{name:<{column}}{sentence}", page_width(), subsequent_indent=" " * column))
    print(f"\n{note}")
    return 0


COMMAND = Command(list_, order=10)
