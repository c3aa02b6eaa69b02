"""Write safetensors files tensor by tensor, and an output that appears complete or not at all."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.files._checkpoint import Checkpoint
from comity.files._formats import FORMATS

SUFFIX = ".safetensors"
Write = Callable[[BinaryIO], object]
"""Writes one file."""


class NewTensor(NamedTuple):
    """A tensor to be written, its numbers in pieces in row-major order."""

    name: str
    kind: str
    shape: tuple[int, ...]
    pieces: Iterator[Tensor]


def write_safetensors(
    target: BinaryIO, axes: Mapping[str, int], tensors: Iterable[NewTensor], metadata: Mapping[str, str] | None
) -> None:
    """Write tensors whose names and numbers of axes are known before. The header is put in last."""
    header: dict[str, object] = {"__metadata__": dict(metadata or {"format": "pt"})}
    room = len(json.dumps(header)) + sum(len(json.dumps(name)) + 96 + 22 * count for name, count in axes.items())
    start = 8 + room + -room % 8
    target.seek(start)
    for name, kind, shape, pieces in tensors:
        first = target.tell() - start
        for piece in pieces:
            numbers: Any = piece.contiguous().view(torch.uint8).numpy()
            target.write(numbers)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [first, target.tell() - start]}
    target.seek(0)
    target.write((start - 8).to_bytes(8, "little") + json.dumps(header).encode().ljust(start - 8))


def becomes_folder(
    output: Path, template: Checkpoint, inputs: Iterable[Path], files: Sequence[str], overwrite: bool
) -> bool:
    """Whether the output is a folder or a file, as the base is. An output that cannot be written is rejected here.

    ``files`` are the names of what will be written, beside what is copied from a template's folder.
    """
    folder = template.folder is not None
    if len(files) > 1 and (not folder or output.suffix in FORMATS):
        raise ComityError(f"output {output} must be a folder: {' and '.join(files)} go into it")
    if output.suffix in FORMATS:
        folder = False  # the one weight file of a folder may be asked for without the folder
    if not folder and output.suffix != SUFFIX:
        raise ComityError(f"output {output} must end in {SUFFIX}, the only format that is written")
    place = output.resolve()
    for given in (path.resolve() for path in inputs):
        if place == given or given in place.parents:
            raise ComityError(f"output {output} is one of the inputs, or in it")
        if place in given.parents:
            raise ComityError(f"output {output} is a folder that {given} lies in")
    if output.exists():
        if not overwrite:
            raise ComityError(f"output {output} exists; give --overwrite to replace it")
        if output.is_dir() != folder:
            raise ComityError(f"output {output} is a {'folder' if output.is_dir() else 'file'}; it cannot be replaced")
        expected = {*files, *(path.name for path in template.sidecars())}
        if folder and (other := {path.name for path in output.iterdir()} - expected):
            raise ComityError(f"output {output} holds {min(other)!r} too; a folder with other things stays as it is")
    return folder


def write_output(output: Path, template: Checkpoint, files: Mapping[str, Write], folder: bool) -> None:
    """Write a folder with the other files of the template's, or a single file."""
    with _complete(output) as part:
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            if folder:
                part.mkdir()
                for path in template.sidecars():
                    shutil.copyfile(path, part / path.name)
            for name, write in files.items():
                with (part / name if folder else part).open("w+b") as target:
                    write(target)
                    target.flush()
                    os.fsync(target.fileno())
        except OSError as error:
            raise ComityError(f"output {output} could not be written ({error.strerror or error})") from error


@contextmanager
def _complete(path: Path) -> Iterator[Path]:
    """A temporary name, which replaces ``path`` if all goes well."""
    part = path.with_name(f".{path.name}.part")  # one name, so that what a killed process left is overwritten
    old = path.with_name(f".{path.name}.old")
    _remove(part)
    try:
        yield part
        if path.is_dir():
            _remove(old)
            path.rename(old)  # a folder cannot be replaced in one step
        part.replace(path)
    finally:
        _remove(part)
        if old.exists() and not path.exists():
            old.rename(path)
        _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
