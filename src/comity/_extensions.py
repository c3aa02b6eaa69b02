"""Which extension an option of a run, or a need of its rule, switches on. The engine imports them by these names."""

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
"""By option, in the order in which they are applied. One that is at its default switches nothing on.

A settled configuration always has a number of ``refit`` rounds, so ``Refit.of`` is asked for every run.
"""

BY_RULE = {
    "needs_losses": "comity.extras.losses:Losses",
    "tries_steps": "comity.extras.trials:Trials",
}
"""By what a rule asks for; applied before the others."""

BY_DATA = {SITES: "comity.extras.scaling:Scaling"}
"""By the name of the data; applied first."""

LAST = ("comity.deploy.extension:SaveModels",)
"""Asked for every run, and applied after all others, the user's own included."""

TRACKERS = {
    "tensorboard": "comity.extras.trackers:TensorBoard",
    "wandb": "comity.extras.trackers:WandB",
    "mlflow": "comity.extras.trackers:MLflow",
}
"""By the name that ``--track`` takes, which is also that of the extra that it needs."""
