"""``comity export``."""

from pathlib import Path

from comity._errors import ComityError
from comity.commands._command import Command


def export(model: Path, *, onnx: Path | None = None, torch: Path | None = None, allow_code: bool = False) -> int:
    """Write a client's model as one file for other programs.

    The file contains the whole pipeline after the input columns: scaling, the mixture of models, softmax and the
    decision. It is compared with the original on synthetic samples before it is written.

    Examples:
        comity export runs/first/models/000-cleveland --onnx cleveland.onnx
        comity export runs/first/models/000-cleveland --torch cleveland.pt2

    Options:
        model: folder of a client's model, in models/ of a run folder
        onnx: ONNX file to write
        torch: file to write for torch.export.load
        allow_code: allow the model to name your own network or method; its code will be executed
    """
    if onnx is None and torch is None:
        raise ComityError("comity export needs --onnx FILE or --torch FILE")
    from comity.deploy import export_onnx, export_torch, load_model

    loaded = load_model(model, allow_code=allow_code)
    for file, write in ((onnx, export_onnx), (torch, export_torch)):
        if file is not None:
            off = write(loaded, file)
            print(f"{file}: largest difference from the original on the stored samples {off:.1e}")
    return 0


COMMAND = Command(export, order=12)
