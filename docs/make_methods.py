"""Writes docs/reference/methods.md and method-details.md from the classes: ``python docs/make_methods.py``.

What is kept and what travels is measured in a run of two rounds, not declared.
"""

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from comity._options import Option, options
from comity.engine import run
from comity.methods import METHODS, Method
from comity.rules import RULES, Mean

CLIENTS, ROUNDS = 4, 2
HEAD = """\
# Methods

A method says how clients train and what they share. A [rule](rules.md) says how the server combines what they send;
any rule can replace a method's averaging step, unless the method brings its own.

```
comity run --method FedRep --method.head_epochs 5 --rule ConFREE --rule.c 0.4
comity run --method FedRep --help        # the options of FedRep
```

To choose a method, see [Which method should I use?](../how-to/which-method.md). The page
[Equations and published settings](method-details.md) explains the symbols and has each method's settings in its paper
and in public code. To write a method, follow the tutorial [A method of your own](../tutorials/own-method.md).

## Overview

- *shares*: the parts of the model that travel.
- *rule acts on*: the parts that the rule combines. *Own rule* in this column means that the method brings its rule, and
  *nothing, own mixing* that it combines models without a rule.
- *kept*: what a client keeps between rounds. *Down*, *up*: what it receives and sends per round. Unit: the size of the
  model, measured with an MLP of {size:,} parameters and {clients} clients. The model of kNN-Per includes its memory,
  which does not travel.

| method | paper | shares | rule acts on | kept | down | up |
|---|---|---|---|--:|--:|--:|
"""
DETAILS = """\
# Methods: equations and published settings

For each [method](methods.md), its equations, its settings in the paper, and what public code does differently. Such
settings decide how strong a method looks in a comparison.

- Code was read as of 2025. PFLlib, FL-bench and easyFL are collections of methods. "The FedPG papers' platform" is the
  public code of FedPG's authors for their experiments, without FedPG itself.
- ° marks settings as commonly reported: we did not read the paper again.
- Methods are evaluated with the newest shared part, before local training (`--eval-point received`), unless an
  entry says otherwise.
- `b` is the body, `h` the head, `f_i` the training loss of client i, `z = b(x)` the features.

"""
PUBLISHED = {
    "Local": (
        "the baseline",
        "FEDORA's code trains all clients in every round, PFLlib only sampled clients",
    ),
    "FedAvg": (
        "average by size; the global model is evaluated",
        "FEDORA's tables have the global model and the fine-tuned one as two rows; the FedPG papers evaluate the model "
        "after local training",
    ),
    "FedProx": (
        "° mu from {0.001, 0.01, 0.1, 1}; inexact solves allowed",
        "PFLlib's default mu is 0, which is FedAvg; FL-bench has 1",
    ),
    "SCAFFOLD": (
        "° option II, server rate 1, unweighted averages, plain SGD",
        "PFLlib averages y by size; in the version that we read, c moves too far, by a factor equal to the number of "
        "clients present",
    ),
    "FedPer": (
        "° the head is the classifier, or the classifier and the last block",
        "PFLlib and FL-bench: the classifier",
    ),
    "FedRep": (
        "° 10 epochs of the head (5 on some data), then 1 of the body",
        "PFLlib: 1 epoch of each; the FedPG papers' platform: 5 of the head, which is only the classifier's bias",
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
        "° alpha 0.01, beta 0.001, three independent batches per step",
        "PFLlib halves one batch of double size, and so makes half the steps; ConFREE's code trains twice per round, "
        "for this method only; public code evaluates after one step on one batch",
    ),
    "APFL": (
        "° v moves by the gradient at the mixture; alpha 0.25 to 0.75 or learnt",
        "the gradient is taken at v itself, alpha is learnt at every batch and pulled to 0, and v is overwritten by "
        "the mixture; PFLlib starts at alpha 1, FL-bench mixes logits at 0.5",
    ),
    "pFedMe": (
        "lam 15, K 5, 20 batches per round",
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
        "in PFLlib and the FedPG papers' platform the pull has no gradient, so the method equals Local",
    ),
    "FedFomo": (
        "lengths of differences in L2",
        "authors: L1 by default, 5 or 10 models, epsilon 0.3, 0.05 less per round; PFLlib: 5 models, no random ones, "
        "the last fifth of the data for validation",
    ),
    "FedU": (
        "Laplacian step after local training",
        "authors: a_kl 0.5; since May 2022 the sum over neighbours is commented out, so the method equals Local",
    ),
    "FedROD": (
        "gamma 1; the personal head is linear or comes from a hypernetwork",
        "no code of the authors; in PFLlib the personal head starts as a copy of the global one; FL-bench adds both "
        "losses and backpropagates once",
    ),
    "FedCP": (
        "° lam 5 at learning rate 0.005",
        "PFLlib: lam 1 by default; noise is also added in evaluations",
    ),
    "FedALA": (
        "p 1 layer, rate 1, 80 % of the data, threshold 0.1",
        "PFLlib: the classifier's two tensors, a contiguous 80 %, the last batch's loss decides; evaluated before "
        "local training",
    ),
    "FedAS": (
        "° the body is aligned with the client's own prototypes; clients are weighted by their Fisher information",
        "PFLlib: one epoch at rate 0.01, in one body that all clients of a round change in turn; a client's model is "
        "evaluated before it receives the new body",
    ),
    "FedPAC": (
        "head 1 epoch, then the body with lam 1",
        "authors: rate 0.1 for the head, 0.01 for the body, momentum 0.5, weight decay 5e-4; PFLlib: one rate for"
        " both, weights below 1e-3 cut without rescaling",
    ),
    "pFedFDA": (
        "° cross-validation chooses the weight between global and own Gaussian features",
        "FL-bench: beta by L-BFGS over two folds, of the test samples; covariances have 1 added to their diagonal",
    ),
    "SplitGP": (
        "° gamma 0.5, lam 0.2, threshold 0.05 to 2.3",
        "the FedPG papers' platform has one number, 0.2, for gamma and lam, whole models instead of parts, and "
        "evaluates after local training",
    ),
    "pFedHN": (
        "one client per step, 50 inner steps",
        "authors: rate 0.01, momentum 0.9, weight decay 1e-3, gradients clipped at 50; FL-bench: several clients "
        "per round, one after another",
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
        "evaluated after local training",
    ),
    "FedFV": (
        "° alpha and tau tuned; absent clients of the previous tau rounds",
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
        "not compared",
    ),
    "FedBABU": (
        "° the head is never trained in rounds; fine-tuned for a few epochs at the end",
        "PFLlib: 10 epochs of fine-tuning",
    ),
    "FedProto": (
        "° lam 1; evaluated by the nearest prototype",
        "not compared",
    ),
    "GPFL": (
        "° lam 1e-4 to 1e-2, mu 0 to 0.1, tuned",
        "not compared",
    ),
    "FedDBE": (
        "° kappa (around 50) and mu (0.1 to 1) tuned",
        "PFLlib's defaults, kappa 0 and mu 0.1, are FedAvg with a personal shift",
    ),
}
"""By method: as its paper has it, and as public code has it, where that differs."""


def pages() -> dict[str, str]:
    """Both pages, by name."""
    rows, size = [], 0
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
        rows.append(
            f"| [{name}](#{anchor(name)}) | {paper(method)} | {' + '.join(done.site.method.shared) or 'nothing'} | "
            f"{acts_on(done.site.method)} | {kept:.2f} | {down:.2f} | {up:.2f} |"
        )
    head = HEAD.format(size=size, clients=CLIENTS) + "\n".join(rows) + "\n\n"
    return {
        "methods": head + "\n".join(map(section, METHODS, METHODS.values())),
        "method-details": DETAILS + "\n".join(map(details, METHODS, METHODS.values())),
    }


def acts_on(method: Method[Any, Any]) -> str:
    own = method.own_rule()
    if own is not None:
        name = next(name for name, rule in RULES.items() if rule is type(own))
        return "nothing, own mixing" if type(own) is Mean else f"{' + '.join(method.shared)}; own rule: {name}"
    return " + ".join(getattr(method, "ruled", method.shared)) or "nothing"


def kind(option: Option) -> str:
    """Type and range in words, "none" first where it is allowed."""
    words, none, _ = option.kind.replace("|", "or").partition(" or none")
    return f"none, or {words}" if none else words


def paper(method: type) -> str:
    """Authors, venue and year, as its docstring has them."""
    found = re.search(r"^Paper: ([^\"]+?\d{4})", inspect.getdoc(method) or "", flags=re.MULTILINE)
    return found[1] if found else ""


def parts(method: type) -> dict[str, str]:
    """The sections of a method's docstring by their names; its first line under the empty name."""
    found = re.split(r"\n\n(\w+):\s", inspect.getdoc(method) or "")
    return {"": found[0]} | {
        name: textwrap.dedent(text).strip() for name, text in zip(found[1::2], found[2::2], strict=True)
    }


def inherited(name: str, method: type) -> tuple[str, list[str]]:
    """The method on the page whose options this one takes over with the same help, and these options."""
    for other, base in METHODS.items():
        if other != name and base in method.__mro__[1:2]:
            mine, theirs = options(method), options(base)
            return other, [key for key, option in theirs.items() if key in mine and mine[key].help == option.help]
    return "", []


def section(name: str, method: type) -> str:
    """What it does, when to use it, its options, and what differs from the paper."""
    said, own = parts(method), options(method)
    base, taken = inherited(name, method)
    own = {key: option for key, option in own.items() if key not in taken}
    lines = [f"## {name}\n", f"{said['']} **Use it** {said['Use']}\n"]
    if "Paper" in said:
        lines.append(f"{said['Paper']} [Equation and published settings](method-details.md#{anchor(name)}).\n")
    if own:
        lines += ["| option | type | default | meaning |", "|---|---|---|---|"]
        default = {None: "none"}
        lines += [f"| `{o.name}` | {kind(o)} | {default.get(o.default, o.default)} | {o.help} |" for o in own.values()]
        lines.append("")
    if taken:
        names = ", ".join(f"`{key}`" for key in taken)
        lines.append(f"{'Further options' if own else 'Options'} as in [{base}](#{anchor(base)}): {names}.\n")
    if "Departures" in said:
        differences = re.sub(r"(?m)^( +)\+", r"\1\\+", said["Departures"])  # a sum, not a list
        lines.append(f"{'Differences from the paper' if 'Paper' in said else 'Note'}:\n\n{differences}\n")
    return "\n".join(lines)


def details(name: str, method: type[Method[Any, Any]]) -> str:
    """Its equations, and the settings of its paper and of public code; a method that is not known yet has none."""
    published, code = PUBLISHED.get(name, ("", ""))
    lines = [f"## {name}\n", f"{parts(method)['Equation']}\n"]
    lines += [f"- **Paper**: {published}"] * bool(published) + [f"- **Public code**: {code}"] * bool(code)
    if method().eval_point == "fitted":
        lines.append("- **Evaluated** after the client's last local training (`--eval-point fitted`)")
    return "\n".join([*lines, ""])


def anchor(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum() or c == "-")


if __name__ == "__main__":
    for name, text in pages().items():
        (Path(__file__).parent / "reference" / f"{name}.md").write_text(text)
