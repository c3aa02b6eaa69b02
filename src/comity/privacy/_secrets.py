"""The secrets of a client, and the federation's list of the other clients' public keys."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from comity._errors import ComityError
from comity._write import atomically
from comity.privacy._keys import KEY, derive
from comity.privacy._policy import Policy

MOST_BYTES = 100_000_000


@dataclass(frozen=True)
class Secrets:
    """One client's secrets: its signing key, all public keys (the federation's list), and the group's seed."""

    client: int
    identity: bytes
    members: Mapping[int, bytes]
    group: bytes
    """The seed of sketches, known to all clients and never to the server."""
    rehearsal: bool = False
    """Whether the secrets are derived from the run's seed, and so protect nothing."""
    policy: Policy = field(default_factory=Policy)
    """The site's policy."""
    answered: Path | None = None
    """Folder that records what these secrets were used for."""

    @classmethod
    def read(cls, file: Path, client: int) -> "Secrets":
        try:
            if file.stat().st_mode & 0o077:
                raise ComityError(f"secrets {file} can be read by others; chmod 600 it")
            if file.stat().st_size > MOST_BYTES:
                raise ValueError("it is too large")
            given = json.loads(file.read_text())
            secrets = cls(
                client=given["client"],
                identity=_key(given["identity"]),
                members={int(cid): _key(key) for cid, key in given["members"].items()},
                group=_key(given["group"]),
                policy=Policy.of(given.get("policy", {})),
                answered=file.with_suffix(".answered"),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = "" if isinstance(error, OSError) else " as `comity flower keys` writes them"
            raise ComityError(f"secrets {file} cannot be read{reason}: {error}") from error
        if secrets.client != client or secrets.members.get(client) != _verifier(secrets.identity):
            raise ComityError(f"secrets {file} are not those of client {client} in their list of members")
        return secrets


def _key(text: Any) -> bytes:
    if not isinstance(text, str) or not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError("a key must be 64 digits of base 16")
    return bytes.fromhex(text)


def _verifier(identity: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


@lru_cache(maxsize=2)
def rehearsed(seed: int, clients: int) -> list[Secrets]:
    """Secrets derived from a run's seed: for a simulation, whose clients are in one process anyway."""
    root = str(seed).encode()
    identities = [derive(root, b"rehearsal", str(cid).encode()) for cid in range(clients)]
    members, group = dict(enumerate(map(_verifier, identities))), derive(root, b"rehearsal", b"group")
    return [Secrets(cid, identity, members, group, rehearsal=True) for cid, identity in enumerate(identities)]


def write_secrets(folder: Path, clients: int) -> list[Path]:
    """Create secrets for every client of a federation, one file each, unreadable for other users of this machine."""
    identities = [os.urandom(KEY) for _ in range(clients)]
    members, group = {str(cid): _verifier(each).hex() for cid, each in enumerate(identities)}, os.urandom(KEY).hex()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = [folder / f"client-{cid}.json" for cid in range(clients)]
    if there := [file for file in files if file.exists()]:
        raise ComityError(f"{there[0]} exists already; secrets are never replaced, give another folder")
    for cid, (file, identity) in enumerate(zip(files, identities, strict=True)):
        with atomically(file) as part:
            os.close(os.open(part, os.O_CREAT | os.O_WRONLY, 0o600))  # before it has content
            secrets = {"client": cid, "identity": identity.hex(), "group": group, "members": members}
            part.write_text(json.dumps({"policy": Policy().plain()} | secrets, indent=1))
    return files
