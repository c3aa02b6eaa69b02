"""A client's model in use: its folder, prediction, and export to other programs.

records    what ``model.json`` holds
artefact   making, writing and reading the folder of a model
card       what a model is, for people
estimator  ``load_model``: a classifier that is fitted
extension  saving models at the end of a run
classifier ``FederatedClassifier``: a federation in scikit-learn's manner
prediction predictions for a file
export     one file for other programs: ONNX or torch.export
"""

from typing import TYPE_CHECKING, Any

from comity.deploy.artefact import Artefact, Weighted, make_artefact, model_folder, read_model, write_model
from comity.deploy.card import markdown
from comity.deploy.estimator import ClientModel, InputError, load_model
from comity.deploy.export import export_onnx, export_torch
from comity.deploy.extension import artefact_of, experts_of, performance_of
from comity.deploy.prediction import Predictions, check_output, feedback_file, predict_file
from comity.deploy.records import FORMAT, ExpertInfo, Inputs, ModelInfo, Performance, Provenance

if TYPE_CHECKING:
    from comity.deploy.classifier import FederatedClassifier

# fmt: off
__all__ = [
    # the folder of a model
    "Artefact", "Weighted", "artefact_of", "make_artefact", "write_model", "read_model", "model_folder", "markdown",
    # its description
    "FORMAT", "ModelInfo", "Inputs", "ExpertInfo", "Provenance", "Performance", "experts_of", "performance_of",
    # in use
    "ClientModel", "load_model", "InputError", "FederatedClassifier",
    "predict_file", "feedback_file", "check_output", "Predictions", "export_onnx", "export_torch",
]
# fmt: on


def __getattr__(name: str) -> Any:
    if name == "FederatedClassifier":  # needs scikit-learn
        from comity.deploy.classifier import FederatedClassifier

        return FederatedClassifier
    raise AttributeError(f"module 'comity.deploy' has no attribute {name!r}")
