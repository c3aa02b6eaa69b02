"""An output that appears whole or not at all."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from comity._errors import ComityError
from comity.files._checkpoint import FORMATS, Checkpoint

Write = Callable[[BinaryIO], object]
"""Writes one file."""


def becomes_folder(
    output: Path, template: Checkpoint, inputs: Iterable[Path], files: Iterable[str], overwrite: bool
) -> bool:
    """Whether the output is a folder or a file, as the base is; refused before any work if it cannot be written.

    ``files`` are the names of what will be written anew, beside what is copied from a template's folder.
    """
    files = list(files)
    whole = template.folder is not None
    if len(files) > len(template.files) and (not whole or output.suffix in FORMATS):
        raise ComityError(
            f"output {output} must be a folder, as {template.path} must: {' and '.join(files)} go into it"
        )
    if whole and len(template.files) == 1 and output.suffix in FORMATS:
        whole = False  # the one weight file of a folder may be asked for without the folder
    if whole and output.suffix in FORMATS:
        raise ComityError(f"output {output} must be a folder, for {template.path} has several files")
    alike = [end for end, kind in FORMATS.items() if isinstance(template.files[0], kind)]
    if not whole and output.suffix not in alike:
        raise ComityError(f"output {output} must end in {' or '.join(alike)}, as {template.files[0].path} does")
    place = output.resolve()
    for given in (path.resolve() for path in inputs):
        if place == given or given in place.parents:
            raise ComityError(f"output {output} is one of the inputs, or in it")
        if place in given.parents:
            raise ComityError(f"output {output} is a folder that {given} lies in")
    if output.exists():
        if not overwrite:
            raise ComityError(f"output {output} exists; give --overwrite to replace it")
        if output.is_dir() != whole:
            raise ComityError(f"output {output} is a {'folder' if output.is_dir() else 'file'}; it cannot be replaced")
        if whole:
            names = {*files, *(path.name for path in (*template.sidecars(), *(file.path for file in template.files)))}
            if other := {path.name for path in output.iterdir()} - names:
                raise ComityError(
                    f"output {output} holds {min(other)!r} too; a folder with other things stays as it is"
                )
    return whole


def write(output: Path, template: Checkpoint, files: Mapping[str, Write], folder: bool) -> None:
    """Write files under a new name: a folder with what else is in the template's, or the one file alone."""
    with _whole(output) as part:
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            if folder:
                part.mkdir()
                for path in template.sidecars():
                    shutil.copyfile(path, part / path.name)
            for name, write_to in files.items():
                with (part / name if folder else part).open("w+b") as target:
                    write_to(target)
                    target.flush()
                    os.fsync(target.fileno())
        except OSError as error:
            raise ComityError(f"output {output} could not be written ({error.strerror or error})") from error


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    part = path.with_name(f".{path.name}.part")  # one name, so that what a kill left is written over
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
