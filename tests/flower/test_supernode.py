"""What ``comity supernode`` puts in place of Flower's own; tests/flower/test_processes.py runs it as a whole."""

import select
import subprocess
import sys
import time

import pytest

from comity import ComityError
from comity.flower import _supernode as ours

FORKS = """
import os, socket, sys
import numpy as np
from comity.flower import _supernode as ours

commands, forks = socket.socketpair(type=socket.SOCK_DGRAM)
said, say = os.pipe()
node, popen = os.getpid(), ours._Forks(forks).Popen
np.random.seed(0)
if os.fork() == 0:
    command = ours._next_command(commands, node)
    if command is not None:
        os.write(say, f"{' '.join(command)} {np.random.random()}\\n".encode())
    os._exit(0)
for token in "abc":
    popen(["flwr-clientapp", "--token", token])
popen(["echo", "another program"], stdout=say)
with os.fdopen(said) as lines:
    print(*(next(lines) for _ in range(4)), sep="", end="")
"""


def test_each_command_has_a_fork_of_its_own_with_other_noise() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=300, check=True)
    other, *lines = sorted(done.stdout.splitlines())
    assert other == "another program"
    assert [line.split()[:3] for line in lines] == [["flwr-clientapp", "--token", each] for each in "abc"]
    assert len({line.split()[3] for line in lines}) == 3


def test_a_version_of_flower_without_these_names_is_rejected() -> None:
    with pytest.raises(ComityError, match="has no gone; take flower-supernode"):
        ours._replace("flwr.supernode.start_client_internal", gone=1)


def test_questions_are_looked_for_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    polls = ours._Polls()
    for _ in range(8):
        polls.sleep(3)
    polls.sleep(0.5)  # for an answer, after a question
    polls.sleep(3)
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3, 3, 3, 0.05, 0.1]


def test_a_question_wakes_the_superexec() -> None:
    bell, called = ours._Bell(), []
    bell.before(lambda *given, **named: called.append((given, named)))(1, two=2)
    started = time.monotonic()
    bell.sleep(60)
    assert time.monotonic() - started < 30
    assert called == [((1,), {"two": 2})]
    assert not select.select([bell._read_end], [], [], 0)[0]  # it was heard once
