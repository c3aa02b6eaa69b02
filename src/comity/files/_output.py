"""Where the output goes, and how it appears complete or not at all."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from comity._errors import ComityError
from comity.files._checkpoint import Checkpoint
from comity.files._formats import FORMATS

SUFFIX = ".safetensors"
Write = Callable[[BinaryIO], object]
"""Writes one file."""


def becomes_folder(
    output: Path, template: Checkpoint, inputs: Iterable[Path], files: Sequence[str], overwrite: bool
) -> bool:
    """Whether the output is a folder or a file, as the base is. An output that cannot be written is rejected here.

    ``files`` are the names of what will be written, beside what is copied from a template's folder.
    """
    folder = template.folder is not None and output.suffix not in FORMATS  # one file of a folder may be asked for
    if len(files) > 1 and not folder:
        raise ComityError(f"output {output} must be a folder: {' and '.join(files)} go into it")
    if not folder and output.suffix != SUFFIX:
        raise ComityError(f"output {output} must end in {SUFFIX}, the only format that is written")
    place = output.resolve()
    for given in (path.resolve() for path in inputs):
        if place.is_relative_to(given) or given.is_relative_to(place):
            raise ComityError(f"output {output} is one of the inputs, in one, or a folder with one ({given})")
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
    """Write a folder with the other files of the template's, or a single file. It appears complete or not at all."""
    part = output.with_name(f".{output.name}.part")  # one name, so that what a killed process left is overwritten
    new, old = part / "new", part / "old"
    try:
        shutil.rmtree(part, ignore_errors=True)
        new.mkdir(parents=True)
        for path in template.sidecars() if folder else ():
            shutil.copyfile(path, new / path.name)
        for name, write in files.items():
            with (new / name).open("w+b") as target:
                write(target)
                target.flush()
                os.fsync(target.fileno())
        if folder and output.exists():
            output.rename(old)  # a folder cannot be replaced in one step
        (new if folder else new / min(files)).replace(output)
    except OSError as error:
        raise ComityError(f"output {output} could not be written ({error.strerror or error})") from error
    finally:
        if old.exists() and not output.exists():
            old.rename(output)
        shutil.rmtree(part, ignore_errors=True)
