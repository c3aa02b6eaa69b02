"""A step by itself: what one core and two make of it, and where its time goes.

python benchmarks/step.py                    # ms per client and step of each net: written out, and compiled
python benchmarks/step.py profile cnn        # written out, one core, torch's profiler, by operation
"""

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from comity.nn import MODELS, Descent, Model, Step, descend
from round import header

BATCH, STEPS = 10, 100
NETS = {"lenet5": ((3, 32, 32), (1, 28, 28)), "mlp": ((1, 28, 28), (1, 8, 8), (3, 32, 32)), "cnn": ((3, 32, 32),)}


def compiled(name: str, shape: tuple[int, ...]) -> Callable[[], object]:
    model, x, y, orders = client(name, shape)
    order, sizes = torch.cat(orders), [len(batch) for batch in orders]
    return lambda: descend(model, (), Step(lr=0.001), None, x, y, order, sizes)


def written_out(name: str, shape: tuple[int, ...]) -> Callable[[], object]:
    model, x, y, orders = client(name, shape)
    descent = Descent(model, (), Step(lr=0.001))
    return lambda: [descent.step(x[index], y[index]) for index in orders]


def client(name: str, shape: tuple[int, ...]) -> tuple[Model, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    x = torch.randn(STEPS * BATCH, *shape)
    x = x.contiguous(memory_format=torch.channels_last) if len(shape) == 3 else x
    return Model(MODELS[name](shape, 10)), x, torch.randint(10, (len(x),)), list(torch.arange(len(x)).split(BATCH))


def milliseconds(make: Callable[[], Callable[[], object]], threads: int) -> float:
    """Of a client and step, the threads together."""
    begin = threading.Barrier(threads + 1)

    def work() -> None:
        steps = make()
        begin.wait()
        steps()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    while begin.n_waiting < threads:
        time.sleep(0.001)
    started = time.perf_counter()  # before anybody is let go: a small net's steps may be done before the next line
    begin.wait()
    for worker in workers:
        worker.join()
    return (time.perf_counter() - started) / (STEPS * threads) * 1e3


def main() -> None:
    torch.set_num_threads(1)
    if "profile" in sys.argv:
        steps = written_out(sys.argv[2], (3, 32, 32))
        steps()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            steps()
        print(profiler.key_averages(group_by_input_shape=True).table(sort_by="self_cpu_time_total", row_limit=15))
        return
    ways = {"written out, one core": (written_out, 1), "compiled, one core": (compiled, 1)}
    ways["compiled, two cores"] = (compiled, 2)
    print(header("ms per client and step", numbers=list(ways)))
    for name, shapes in NETS.items():
        for shape in shapes:
            turns = [
                [milliseconds(partial(make, name, shape), threads) for make, threads in ways.values()] for _ in range(5)
            ]
            least = map(min, zip(*turns, strict=True))
            cells = " | ".join(f"{each:.3f}" for each in least)
            print(f"| {name}, {'×'.join(map(str, shape))} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
