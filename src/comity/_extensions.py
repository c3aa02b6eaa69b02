"""The extensions that options of a run, or needs of its rule, switch on. The engine imports them by these names."""

from comity._datasets import SITES

BY_OPTION = {
    "refit": "comity.extras.refit:Refit",
    "sketch": "comity.extras.bounds:Sketches",
    "max_share": "comity.extras.bounds:Caps",
    "clip_updates": "comity.extras.bounds:Clipping",
    "attack": "comity.extras.attacks:Attack",
    "newcomers": "comity.extras.newcomers:Newcomers",
    "general_validation": "comity.extras.validation:GeneralValidation",
    "guard": "comity.guard.extension:Guarding",
    "masked": "comity.privacy.extension:MaskedSums",
}
"""By option, in the order of application. An option at its default switches nothing on.

A settled configuration always has a number of ``refit`` rounds, so ``Refit.of`` is called for every run.
"""

BY_RULE = {
    "needs_losses": "comity.extras.losses:Losses",
    "tries_steps": "comity.extras.trials:Trials",
}
"""By the rule's needs; applied before the others."""

BY_DATA = {SITES: "comity.extras.scaling:Scaling"}
"""By the name of the data; applied first."""

LAST = ("comity.deploy.extension:SaveModels",)
"""Used in every run, applied after all others, including users' own."""

TRACKERS = {
    "tensorboard": "comity.extras.trackers:TensorBoard",
    "wandb": "comity.extras.trackers:WandB",
    "mlflow": "comity.extras.trackers:MLflow",
}
"""Trackers by their ``--track`` name, which is also the name of the extra."""
