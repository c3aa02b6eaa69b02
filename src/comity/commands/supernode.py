"""``comity supernode``."""

from collections.abc import Sequence

from comity.commands._command import Command


def supernode() -> int:
    """Run Flower's SuperNode without the start-up that it has for every message.

    Takes the options of `flower-supernode` (docs/deploy.md). Needs the extra flower.

    Examples:
        comity supernode --insecure --superlink localhost:8000 --node-config "partition-id=0 num-partitions=3"
    """
    raise NotImplementedError  # the options are Flower's


class _Passed(Command):
    """All options are Flower's."""

    def __call__(self, arguments: Sequence[str]) -> int:
        if not arguments or arguments[0] in ("-h", "--help"):
            return super().__call__(["--help"])
        from comity.flower import supernode

        return supernode(arguments)


COMMAND = _Passed(supernode, order=9)
