"""``comity supernode``."""

from collections.abc import Sequence

from comity.commands._command import Command
from comity.config import Entries


def supernode(flower: tuple[str, ...]) -> int:
    """Run Flower's SuperNode, starting Python only once.

    It replaces `flower-supernode`, which spends 4 to 5 s of processor time per message, mostly on imports
    (docs/how-to/deploy.md). Needs the extra flower, and Linux.

    Examples:
        comity supernode --superlink server:8000 --root-certificates ca.crt --node-config "data='/srv/patients.csv'"
        comity supernode --insecure --superlink 127.0.0.1:8000 --node-config "partition-id=0 num-partitions=3"

    Options:
        flower: options of flower-supernode
    """
    from comity.flower import supernode

    return supernode(flower)


class _Passing(Command):
    """Passes all options on unparsed."""

    def parse(self, arguments: Sequence[str]) -> Entries:
        return {"help": True} if {"-h", "--help"} & set(arguments) else {"flower": list(arguments)}


COMMAND = _Passing(supernode, order=15)
