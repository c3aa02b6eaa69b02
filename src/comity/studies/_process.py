"""A worker in a process of this machine; ``python -m comity.studies._process`` is its other end.

The process reads orders from standard input and answers in JSON lines. When the study is killed, that input ends and
the process ends too; its run can be resumed like any killed one.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from comity._write import open_plain
from comity.results import LOG
from comity.studies._crew import Inbox, Message, work


class Process:
    """The study's end of the process."""

    tries = 1  # a process that dies (out of memory?) would die again

    def __init__(self, inbox: Inbox, log: Path) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        with open_plain(log, "a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "comity.studies._process"],  # -P: no module of the working directory
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # the study handles Ctrl-C
            )
        assert self.process.stdin is not None
        self.orders = self.process.stdin
        self.listener = Thread(target=self._listen, args=(inbox,), daemon=True)
        self.listener.start()

    def _listen(self, inbox: Inbox) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as answers:
            for line in answers:
                inbox.put((self, json.loads(line)))
        code = self.process.wait()
        error = f"the process ended with code {code}" + (" (killed; out of memory?)" if code == -9 else "")
        inbox.put((self, {"end": "failed", "gone": True, "error": error, "traceback": f"see {LOG}"}))

    def tell(self, order: Any) -> None:
        with suppress(BrokenPipeError):  # it is gone, which _listen reports
            self.orders.write(json.dumps(order) + "\n")
            self.orders.flush()

    def close(self) -> None:
        """End the process by closing its input."""
        with suppress(BrokenPipeError):
            self.orders.close()
        self.process.wait()
        self.listener.join()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a method must not mix with the answers
    orders: SimpleQueue[dict[str, Any]] = SimpleQueue()
    stop = Event()

    def listen() -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if order == "stop":
                stop.set()
            else:
                orders.put(order)
        os._exit(0)  # the study is over or was killed: its runs must stop writing

    def tell(message: Message) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    Thread(target=listen, daemon=True).start()
    from comity.studies._runs import Runs  # with torch: meanwhile orders are listened to

    runs = Runs()
    while True:
        work(orders.get(), tell, stop.is_set, runs.next_plan)


if __name__ == "__main__":
    main()
