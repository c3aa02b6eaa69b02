"""Writes docs/reference/methods.md from the classes themselves: ``python docs/make_methods.py``.

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
PUBLISHED = {
    "Local": (
        "trained alone, as the lower bound of every paper here",
        "FEDORA's trains all clients in every round, PFLlib's those that are sampled",
    ),
    "FedAvg": (
        "average by size; the global model is judged",
        "FEDORA has the global model and its fine-tuning as two rows; the FedPG papers judge the model after "
        "local training",
    ),
    "FedProx": (
        "° mu from {0.001, 0.01, 0.1, 1}; inexact solves allowed",
        "PFLlib's default mu is 0, which is FedAvg; FL-bench has 1",
    ),
    "SCAFFOLD": (
        "° option II, server rate 1, unweighted averages, plain SGD",
        "PFLlib: y by size; in the version read c moves by the sum of the changes times the share of clients "
        "present: too far, by the number of clients present",
    ),
    "FedPer": (
        "° head: the classifier, or with a last block",
        "PFLlib and FL-bench: the classifier",
    ),
    "FedRep": (
        "° 10 epochs of the head (5 on some data), then 1 of the body",
        "PFLlib 1 and 1; the FedPG papers' platform 5, and its head is the classifier's bias alone",
    ),
    "LG-FedAvg": (
        "the top layers are shared",
        "authors: starts from a trained FedAvg model, averages without weights; PFLlib: from scratch, by size; "
        "FL-bench shares the first layers instead",
    ),
    "Ditto": (
        "° lam around {0.05, 0.1, 0.2, 1, 2}",
        "authors' scripts 1; PFLlib's default is 0, which is Local; the FedPG papers' platform restarts v from w "
        "in every round",
    ),
    "Per-FedAvg": (
        "° alpha 0.01, beta 0.001, three independent batches a step",
        "PFLlib halves one batch of double size, and so makes half the steps; ConFREE's trains twice per round for "
        "this method alone; judged after one step on one batch",
    ),
    "APFL": (
        "° v moves by the gradient at the mixture; alpha 0.25 to 0.75 or learnt",
        "gradient at v itself, alpha learnt at every batch and pulled to 0, v overwritten by the mixture; PFLlib "
        "starts at alpha 1, FL-bench mixes logits at 0.5",
    ),
    "pFedMe": (
        "lam 15, K 5, 20 batches a round",
        "authors: inner rate 0.09 (MNIST) or 0.01 (synthetic), eta 0.005, beta 1 or 2; PFLlib's default beta 0 "
        "never moves the common model; the FedPG papers' platform makes one proximal step",
    ),
    "kNN-Per": (
        "° k 10, the whole training set in the memory, lam tuned for each client",
        "FL-bench: mixes p_knn with logits, not with probabilities, at one weight for all; squared distances over the "
        "number of features",
    ),
    "FedAMP": (
        "° lam 1, alpha 1e4 (decaying), sigma 1e6: a pull of 1e-4",
        "in PFLlib and the FedPG papers' platform the pull has no gradient, which is Local",
    ),
    "FedFomo": (
        "lengths of differences in L2",
        "authors: L1 by default, 5 or 10 models, epsilon 0.3 falling by 0.05; PFLlib: 5 models, no random ones, "
        "the last fifth of the data for validation",
    ),
    "FedU": (
        "Laplacian step after local training",
        "authors: a_kl 0.5; since May 2022 the sum over neighbours is commented out, which is Local",
    ),
    "FedROD": (
        "gamma 1; own head linear or from a hypernetwork",
        "no code of the authors'; PFLlib's own head starts as a copy of the generic one; in FL-bench both losses "
        "go back together",
    ),
    "FedCP": (
        "° lam 5 at learning rate 0.005",
        "PFLlib's common default is 1; noise in tests too",
    ),
    "FedALA": (
        "p 1 layer, rate 1, 80 % of the data, threshold 0.1",
        "PFLlib: the classifier's two tensors, a contiguous 80 %, the last batch's loss decides; judged before "
        "local training",
    ),
    "FedAS": (
        "° the body is aligned with the client's own prototypes; clients count by their Fisher information",
        "PFLlib: one epoch at rate 0.01, in one body that all clients of a round change in turn; judged "
        "before it is received",
    ),
    "FedPAC": (
        "head 1 epoch, then the body with lam 1",
        "authors: rate 0.1 for the head, 0.01 for the body, momentum 0.5, weight decay 5e-4; PFLlib: one rate for"
        " both, weights below 1e-3 cut without rescaling",
    ),
    "pFedFDA": (
        "° the classifier is made of Gaussian features, between common and own ones by cross-validation",
        "FL-bench: beta by L-BFGS over two folds, of the test samples; covariances have 1 added to their diagonal",
    ),
    "SplitGP": (
        "° gamma 0.5, lam 0.2, threshold 0.05 to 2.3",
        "the FedPG papers' platform has one number, 0.2, for gamma and lam, whole models instead of parts, and "
        "judges after local training",
    ),
    "pFedHN": (
        "one client a step, 50 inner steps",
        "authors: rate 0.01, momentum 0.9, weight decay 1e-3, gradients clipped at 50; FL-bench: several clients "
        "a round, one after another",
    ),
    "IFCA": (
        "average within clusters; different random starts",
        "authors: without weights; 4 clusters (rotated MNIST), 2 (rotated CIFAR)",
    ),
    "FeSEM": (
        "distances of all parameters",
        "authors: of one layer, every few rounds, clusters of one client skipped",
    ),
    "FedMGDA+": (
        "° eps from {0, 0.05, 0.1, 0.5, 1} around 1/N; tuned, decaying server rate",
        "easyFL: eps 0.1 around the sizes' shares, server rate 1; the FedPG papers' platform: the local rate, "
        "judged after local training",
    ),
    "FedFV": (
        "° alpha and tau tuned; absent clients of the tau rounds before",
        "authors: alpha 0.1, tau 1, a window that includes the current round",
    ),
    "FEDORA": (
        "slides: sum of cosines, all neighbours, lambda max(1e-8, difference)",
        "authors: labels included, exp(10 cosine), the two nearest, lambda exp(difference / 2), pull after the "
        "optimiser",
    ),
    "FedCALM": (
        "eps 0.1; C 0.1 to 100 by data and depth; the client is not described",
        "none public",
    ),
    "FedPG": (
        "supplement only; global direction as FedMDFG and FedLF, the personal one is a reconstruction",
        "the algorithm's classes are withheld; a helper for the direction is open",
    ),
    "S-FedPG": (
        "line search of the supplement's Algorithm 1, s 1",
        "withheld; FedMDFG's line search is open (s 5, beta 1e-4)",
    ),
    "FedBN": (
        "° BatchNorm's parameters and statistics stay with the client",
        "not read",
    ),
    "FedBABU": (
        "° the head is never trained in rounds; fine-tuned for a few epochs at the end",
        "PFLlib: 10 epochs of fine-tuning",
    ),
    "FedProto": (
        "° lam 1; judged by the nearest prototype",
        "not read",
    ),
    "GPFL": (
        "° lam 1e-4 to 1e-2, mu 0 to 0.1, tuned",
        "not read",
    ),
    "FedDBE": (
        "° kappa (around 50) and mu (0.1 to 1) tuned",
        "PFLlib's defaults, kappa 0 and mu 0.1, are FedAvg with a personal shift",
    ),
}
"""By method: as its paper has it, and as public code has it, where that differs."""

SOURCES = """
## As the paper, its public code, and comity have it

Defaults and the evaluation point decide how strong a method looks. "Here" has the defaults of this version and the
model that is judged: with the newest shared part, before it is fitted (received), or as its last training left it
(fitted); `--moment` changes that. What else differs stands under each method's departures. Code was read as it was in
2025; PFLlib, FL-bench and easyFL are collections. ° marks papers whose numbers are those that are commonly
reported: they were not read again for this table.

| method | as the paper has it | as public code has it | here |
|---|---|---|---|
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

An option with a range says so in its type, and other values are rejected with one clear line: after
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
    sources = SOURCES + "\n".join(compared(name, method) for name, method in METHODS.items()) + "\n"
    return head + table + "\n".join(rows) + "\n" + sources + OWN + "\n" + "\n".join(sections)


def compared(name: str, method: type[Method[Any, Any]]) -> str:
    """A line of the table of sources; a method that it does not know yet has its departures alone."""
    published, code = PUBLISHED.get(name, ("see below", "see below"))
    defaults = [f"`{o.name}` {'none' if o.default is None else o.default}" for o in options(method).values()]
    here = f"{', '.join(defaults)}; judged as {method().moment}" if defaults else f"judged as {method().moment}"
    return f"| [{name}](#{anchor(name)}) | {published} | {code} | {here} |"


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
    (Path(__file__).parent / "reference" / "methods.md").write_text(page())
