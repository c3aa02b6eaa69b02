"""``python -m comity.studies._worker``: the other end of ``_crew.Process``."""

import json
import os
import sys
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from comity.studies._crew import Message, work


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a method prints must not come between the answers
    orders: SimpleQueue[dict[str, Any]] = SimpleQueue()
    stop = Event()

    def listen() -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if order == "stop":
                stop.set()
            else:
                orders.put(order)
        os._exit(0)  # the study is over, or was killed: a run that nobody waits for must not go on writing

    def tell(message: Message) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    Thread(target=listen, daemon=True).start()
    while True:
        work(orders.get(), tell, stop.is_set)


if __name__ == "__main__":
    main()
