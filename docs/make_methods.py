"""Writes docs/methods.md from the classes themselves: ``python docs/make_methods.py``.

What is kept and what travels is measured in a run of two rounds, not declared.
"""

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from comity._options import options
from comity.engine import run
from comity.methods import METHODS, Method
from comity.rules import Mean

CLIENTS, ROUNDS = 4, 2
HEAD = """\
# Methods

A method says how clients learn and what they share; a [rule](rules.md) says how the server combines it. Any rule can
take the place of a method's averaging step, unless the method brings its own.

```
comity run --method FedRep --method.head_epochs 5 --rule ConFREE --rule.c 0.4
comity run --method FedRep --help        # the options of FedRep
```

"Shared" is the group of parts that travel, "rule acts on" those of them that the rule combines. "Kept" is what a client
remembers between rounds, "down" and "up" what one client receives and sends in a round, all as multiples of the model
(here an MLP of {size:,} numbers, with {clients} clients, all taking part), measured in a run. This page is made by
`python docs/make_methods.py`.

"""
OWN = '''
## A method of your own

A class in a file of yours, named on the command line; nothing to register, nothing to edit here. This is all of FedPer
with a proximal pull:

```python
# mymethod.py
from comity.methods import Client, Message, Method, Reply


class Gentle(Method):
    """Share the body, keep the head, and do not go far from what was received.

    Options:
        strength: strength of the pull towards the received body
    """

    strength: float = 0.1

    shared = ("body",)

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        client.sgd(None, "head")
        client.sgd(None, "shared", pull=(received.theta, self.strength))
        return self.reply(client)
```

```
comity run --method mymethod.Gentle --method.strength 0.5 --rule ConFREE
```

What a client must remember goes into `client.keep`, what the server must remember into `server.store`, both as tensors:
then the run resumes, and gives the same bits with any number of workers. `comity.methods.Client` and
`comity.methods.Server` say what a method may use of both, `src/comity/methods/_method.py` is the base class, and every
method here is an example.

An option with a range says so in its type, and other values are refused with one clear line: after
`from comity.methods import NonNegative` the option above is `strength: NonNegative = 0.1`. There are also `Positive`,
`Share`, `Count` and `CountOrZero`.

### Messages of its own

What travels is declared. A client receives a `Message` (the shared part, `theta`) and sends a `Reply` (`theta` and its
number of samples, `size`). A method that sends more subclasses them, with fields that are tensors, numbers, words or
truths; one that is `None` does not travel. The same classes go through threads and over Flower.

```python
from torch import Tensor

from comity.methods import Client, Message, Method, Reply


class Counted(Reply):
    counts: Tensor


class Counting(Method[Message, Counted]):
    """FedAvg, in which each client also tells how many samples of each class it has."""

    def fit(self, client: Client, received: Message) -> Counted:
        self.load(client, received)
        client.sgd()
        return self.reply(client, counts=client.data.train.y.bincount(minlength=10))
```

The server half (`begin`, `send`, `merge`) may ask clients for more than `fit`: a client-side function that is declared
with `@verb` is called by `server.ask(self.basis, {cid: Question() for cid in server.clients})`, and its annotations say
what travels. FEDORA, FedDBE and S-FedPG are examples.
'''


def page() -> str:
    rows, sections = [], []
    size = 0
    for name, method in METHODS.items():
        done = run(
            data={"name": "synthetic", "samples": 40, "classes": 4},
            model={"name": "mlp", "widths": (32,)},
            method=name,
            clients=CLIENTS,
            rounds=ROUNDS,
            lr=0.01,
            reference="none",
            workers=1,
        )
        size = done.site.model().size()
        traffic = done.result.bytes_per_round
        state = done.server.link.states()[0].flat()
        kept = sum(tensor.numel() for key, tensor in state.items() if key != "engine/counters") / size
        down, up = (way / 4 / CLIENTS / size for way in (traffic.down, traffic.up))
        shared = done.site.method.shared
        listed = ", ".join(f"`{option}`" for option in options(method))
        rows.append(
            f"| [{name}](#{anchor(name)}) | {paper(method)} | {' + '.join(shared) or 'nothing'} | "
            f"{acts_on(done.site.method)} | {kept:.2f} | {down:.2f} | {up:.2f} | {listed} |"
        )
        sections.append(section(name, method))
    table = (
        "| method | paper | shared | rule acts on | kept | down | up | options |\n|---|---|---|---|---|---|---|---|\n"
    )
    head = HEAD.format(size=size, clients=CLIENTS)
    return head + table + "\n".join(rows) + "\n" + OWN + "\n" + "\n".join(sections)


def acts_on(method: Method[Any, Any]) -> str:
    own = method.own_rule()
    if own is not None:
        return "nothing: it mixes by itself" if type(own) is Mean else type(own).__name__
    return " + ".join(getattr(method, "ruled", method.shared)) or "nothing"


def paper(method: type) -> str:
    """Authors, venue and year, as its docstring has them."""
    found = re.search(r"^Paper: ([^\"]+?\d{4})", inspect.getdoc(method) or "", flags=re.MULTILINE)
    return found[1] if found else ""


def section(name: str, method: type) -> str:
    lines = [f"## {name}\n", markdown((inspect.getdoc(method) or "").partition("\nOptions:")[0]), ""]
    own = options(method)
    if own:
        lines += ["| option | type | default | |", "|---|---|---|---|"]
        lines += [f"| `{o.name}` | {o.kind.replace('|', 'or')} | {o.default} | {o.help} |" for o in own.values()]
        lines.append("")
    return "\n".join(lines)


def markdown(text: str) -> str:
    """A docstring's sections with their names in bold, and its list as a list."""
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        heading, colon, rest = paragraph.partition(":")
        if heading in ("Paper", "Equation", "Departures") and colon:
            separator = "\n\n" if rest.startswith("\n") else " "
            paragraph = f"**{heading}.**{separator}{textwrap.dedent(rest.lstrip(chr(10))).strip()}"
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def anchor(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum() or c == "-")


if __name__ == "__main__":
    Path(__file__).with_name("methods.md").write_text(page())
