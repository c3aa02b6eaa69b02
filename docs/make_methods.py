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

A method says how clients train and what they share. A [rule](rules.md) says how the server combines what clients send.
Any rule can replace a method's averaging step, unless the method has its own rule or combines models in its own way.

```
comity run --method FedRep --method.head_epochs 5 --rule ConFREE --rule.c 0.4
comity run --method FedRep --help        # the options of FedRep
```

To choose a method, see [Which method should I use?](../how-to/which-method.md). To write a method, follow the tutorial
[A method of your own](../tutorials/own-method.md). The *body* of a model is the layers that compute features; the
*head* is the last layer, which classifies. Symbols are explained on the page [Equations and published
settings](method-details.md), other words in the [glossary](glossary.md).

## Overview

- *shares*: the parts of the model that clients and server exchange. Some methods also exchange other data, such as
  control variates or prototypes.
- *rule acts on*: the parts that the rule combines. *Own rule*: the method always uses the rule named here. *Own
  mixing*: the method combines models (FedProto: prototypes) in its own way, without a rule.
- *kept*: what a client stores between rounds. *Down*, *up*: what a client receives and sends per round. The unit of
  these three columns is the size of the model. They were measured with an MLP of {size:,} parameters and {clients}
  clients. For kNN-Per, the size includes the memory of samples, which is not sent; so *down* and *up* look small.

| method | paper | shares | rule acts on | kept | down | up |
|---|---|---|---|--:|--:|--:|
"""
DETAILS = """\
# Methods: equations and published settings

For each [method](methods.md), this page has its equations, its settings in the paper, and what public code does
differently.

- *Paper*: ° marks settings that we took from other sources and did not check in the paper.
- *Public code*: as of 2025. *Authors* means the code of the paper's authors. PFLlib, FL-bench and easyFL are
  collections of methods. "The FedPG platform" is the code that the authors of FedPG published for their experiments; it
  does not include FedPG.
- Methods are evaluated with the newest shared part, before local training (`--eval-point received`), unless an entry
  says otherwise.

| symbol | meaning |
|---|---|
| i, k, n_i, n | a client; a class or another client; number of samples of client i; of all clients together |
| theta, θ, w | parameters of the model; Δ_i is client i's update |
| b, h, z = b(x) | body; head; features of the sample x |
| f_i, lr | training loss of client i; learning rate |
| CE, MSE | cross-entropy; mean squared error |
| ‖·‖, ⟨·, ·⟩, ⊙ | Euclidean norm; inner product; elementwise product |
| simplex | all vectors of weights that are at least 0 and sum to 1 |

"""
PUBLISHED = {
    "Local": (
        "the baseline",
        "FEDORA's authors train all clients in every round, PFLlib only the sampled ones",
    ),
    "FedAvg": (
        "average by size; the global model is evaluated",
        "FEDORA's tables have two rows, the global model and the fine-tuned one; the FedPG papers evaluate the "
        "model after local training",
    ),
    "FedProx": (
        "° mu from {0.001, 0.01, 0.1, 1}; a client may stop at an inexact solution",
        "PFLlib's default mu is 0, which is FedAvg; FL-bench's is 1",
    ),
    "SCAFFOLD": (
        "° option II, server learning rate 1, unweighted averages, plain SGD",
        "PFLlib averages y by size; in the version that we read, it moves c too far, by a factor equal to the "
        "number of clients in the round",
    ),
    "FedPer": (
        "° the head is the classifier, or the classifier and the last block",
        "in PFLlib and FL-bench the head is the classifier",
    ),
    "FedRep": (
        "° 10 epochs of the head (5 on some data), then 1 of the body",
        "PFLlib trains 1 epoch of each; the FedPG platform trains 5 epochs of the head, which there is only the "
        "classifier's bias",
    ),
    "LG-FedAvg": (
        "the top layers are shared",
        "the authors start from a model trained with FedAvg and average without weights; PFLlib starts from "
        "scratch and averages by size; FL-bench shares the first layers instead",
    ),
    "Ditto": (
        "° lam around {0.05, 0.1, 0.2, 1, 2}",
        "the authors' scripts have lam 1; PFLlib's default is 0, which is Local; the FedPG platform sets v to w "
        "at the start of every round",
    ),
    "Per-FedAvg": (
        "° alpha 0.01, beta 0.001, three independent batches per step",
        "PFLlib draws batches of double size and halves them, so it makes half as many steps; ConFREE's code "
        "trains twice per round, for this method only; public code evaluates after one step on one batch",
    ),
    "APFL": (
        "° the gradient for v is taken at the mixture; alpha 0.25 to 0.75, or learned",
        "the gradient for v is taken at v itself, alpha is learned at every batch and pulled to 0, and the "
        "mixture replaces v; PFLlib starts at alpha 1; FL-bench mixes logits at 0.5",
    ),
    "pFedMe": (
        "lam 15, K 5, 20 batches per round",
        "the authors' personal_lr is 0.09 (MNIST) or 0.01 (synthetic data), eta 0.005, beta 1 or 2; PFLlib's "
        "default beta is 0, so the global model never moves; the FedPG platform makes one proximal step",
    ),
    "kNN-Per": (
        "° k 10, the whole training set in the memory, lam tuned for each client",
        "FL-bench mixes p_knn with logits instead of probabilities, with the same weight for all clients; it "
        "divides squared distances by the number of features",
    ),
    "FedAMP": (
        "° lam 1, alpha 1e4 (decaying), sigma 1e6; so the pull lam/alpha is 1e-4",
        "in PFLlib and the FedPG platform the pull has no gradient, so the method equals Local",
    ),
    "FedFomo": (
        "distances between models in the L2 norm",
        "the authors use the L1 norm by default, 5 or 10 models, and epsilon 0.3, which falls by 0.05 per round; "
        "PFLlib uses 5 models, no random ones, and the last fifth of the data for validation",
    ),
    "FedU": (
        "Laplacian step after local training",
        "the authors' a_kl is 0.5; since May 2022 the sum over neighbours is commented out, so the method equals Local",
    ),
    "FedROD": (
        "gamma 1; the personal head is linear or comes from a hypernetwork",
        "the authors published none; in PFLlib the personal head starts as a copy of the global one; FL-bench "
        "adds both losses and backpropagates once",
    ),
    "FedCP": (
        "° lam 5 at learning rate 0.005",
        "PFLlib's default lam is 1; it also adds noise in evaluations",
    ),
    "FedALA": (
        "1 layer (p), rate 1, 80 % of the data, threshold 0.1",
        "PFLlib adapts the classifier's weight and bias on a contiguous 80 % of the data, stops by the last "
        "batch's loss, and evaluates before local training",
    ),
    "FedAS": (
        "° the body is aligned with the client's own prototypes (mean features per class); clients are weighted "
        "by their Fisher information",
        "PFLlib aligns for one epoch at rate 0.01, and all clients of a round change the same body in turn; it "
        "evaluates a client's model before the client receives the new body",
    ),
    "FedPAC": (
        "head 1 epoch, then the body with lam 1",
        "the authors' learning rate is 0.1 for the head and 0.01 for the body, with momentum 0.5 and weight decay "
        "5e-4; PFLlib has one learning rate for both, and sets weights below 1e-3 to 0 without rescaling",
    ),
    "pFedFDA": (
        "° cross-validation chooses the weight between global and own Gaussian features",
        "FL-bench finds beta by L-BFGS over two folds of the test samples, and adds 1 to the diagonal of covariances",
    ),
    "SplitGP": (
        "° gamma 0.5, lam 0.2, threshold 0.05 to 2.3",
        "the FedPG platform uses one number, 0.2, for gamma and lam, and whole models instead of parts; it "
        "evaluates after local training",
    ),
    "pFedHN": (
        "one client per step, 50 inner steps",
        "the authors' server has learning rate 0.01, momentum 0.9, weight decay 1e-3, and clips gradients at 50; "
        "FL-bench has several clients per round, one after another",
    ),
    "IFCA": (
        "average within clusters; different random initial models",
        "the authors average without weights, with 4 clusters (rotated MNIST) or 2 (rotated CIFAR)",
    ),
    "FeSEM": (
        "distances over all parameters",
        "the authors take the distances of one layer, every few rounds, and skip clusters of one client",
    ),
    "FedMGDA+": (
        "° eps from {0, 0.05, 0.1, 0.5, 1} around 1/N; tuned, decaying server learning rate",
        "easyFL has eps 0.1 around the clients' shares of the samples and server learning rate 1; the FedPG "
        "platform takes the local learning rate and evaluates after local training",
    ),
    "FedFV": (
        "° alpha and tau tuned; absent clients of the previous tau rounds",
        "the authors have alpha 0.1 and tau 1; the tau rounds include the current one",
    ),
    "FEDORA": (
        "slides: sum of cosines, all neighbours, lambda max(1e-8, difference)",
        "the authors include labels, and use exp(10 · cosine), the two most similar clients, lambda "
        "exp(difference / 2), and the pull after the optimiser step",
    ),
    "FedCALM": (
        "eps 0.1; C 0.1 to 100, depending on data and depth; local training is not described",
        "none",
    ),
    "FedPG": (
        "we had only the supplement; the global direction is that of FedMDFG and FedLF, the personal one is our "
        "reconstruction",
        "none of the algorithm, except a helper that computes the direction",
    ),
    "S-FedPG": (
        "line search of the supplement's Algorithm 1, s 1",
        "none; FedMDFG's line search is public (s 5, beta 1e-4)",
    ),
    "FedBN": (
        "° BatchNorm's parameters and statistics stay with the client",
        "not compared",
    ),
    "FedBABU": (
        "° rounds never train the head; fine-tuned for a few epochs at the end",
        "PFLlib fine-tunes for 10 epochs",
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
            f"| [{name}](#{anchor(name)}) | {paper(method)} | {' + '.join(done.site.method.shared) or '–'} | "
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
        return "own mixing" if type(own) is Mean else f"{' + '.join(method.shared)}; own rule: {name}"
    return " + ".join(getattr(method, "ruled", method.shared)) or "–"


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
