"""Writes docs/methods.md from the classes themselves: ``python docs/make_methods.py``.

What is kept and what travels is measured in a run of two rounds, not declared.
"""

import inspect
from pathlib import Path

from comity._catalogue import Description, described
from comity.engine import run
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

"Shared" is the group of parts that the rule acts on. "Kept" is what a client remembers between rounds, "down" and "up"
what one client receives and sends in a round, all as multiples of the model (here an MLP of {size:,} numbers, with
{clients} clients, all taking part), measured in a run. This page is made by `python docs/make_methods.py`.

"""
OWN = '''
## A method of your own

A class in a file of yours, named on the command line; nothing to register, nothing to edit here. This is all of FedPer
with a proximal pull:

```python
# mymethod.py
from comity.methods import Client, Method, Payload


class Gentle(Method):
    """Share the body, keep the head, and do not go far from what was received.

    Options:
        strength: strength of the pull towards the received body
    """

    strength: float = 0.1

    shared = ("body",)

    def fit(self, client: Client, received: Payload) -> Payload:
        self.load(client, received)
        client.sgd(None, "head")
        client.sgd(None, "shared", pull=(received["theta"], self.strength))
        return self.reply(client)
```

```
comity run --method mymethod.Gentle --method.strength 0.5 --rule ConFREE
```

What a client must remember goes into `client.keep`, what the server must remember into `server.store`, both as tensors:
then the run resumes, and gives the same bits with any number of workers. `src/comity/methods/_method.py` is the base
class; every method here is an example.
'''


def page() -> str:
    rows, sections = [], []
    size = 0
    for name, description in described("method").items():
        method = description.load()
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
        traffic = done.result["bytes a round"]
        kept = sum(t.numel() for k, t in done.server.link.states()[0].items() if k != "counters") / size
        down, up = (traffic[way] / 4 / CLIENTS / size for way in ("down", "up"))
        own = done.site.method.own_rule()
        ruled = " + ".join(getattr(method, "ruled", done.site.method.shared)) or "nothing"
        acts = ruled if own is None else "nothing: it mixes by itself" if type(own) is Mean else type(own).__name__
        shared = " + ".join(part for part in done.site.method.shared) or "nothing"
        listed = ", ".join(f"`{option}`" for option in description.options)
        rows.append(
            f"| [{name}](#{anchor(name)}) | {description.paper} | {shared} | "
            f"{acts} | {kept:.2f} | {down:.2f} | {up:.2f} | {listed} |"
        )
        sections.append(section(description, inspect.getdoc(method) or ""))
    table = (
        "| method | paper | shared | rule acts on | kept | down | up | options |\n|---|---|---|---|---|---|---|---|\n"
    )
    head = HEAD.format(size=size, clients=CLIENTS)
    return head + table + "\n".join(rows) + "\n" + OWN + "\n" + "\n".join(sections)


def section(description: Description, doc: str) -> str:
    text = doc.split("\nOptions:")[0].strip()
    lines = [f"## {description.name}\n", text, ""]
    if description.options:
        lines += ["| option | type | default | |", "|---|---|---|---|"]
        lines += [
            f"| `{option.name}` | {option.kind.replace('|', 'or')} | {option.default} | {option.help} |"
            for option in description.options.values()
        ]
        lines.append("")
    return "\n".join(lines)


def anchor(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum() or c == "-")


if __name__ == "__main__":
    Path(__file__).with_name("methods.md").write_text(page())
