"""A step by itself: how many clients to stack, and where its time goes.

python benchmarks/step.py stack          # mlp, 28×28, batches of 10: ms a client and step, one and two threads
python benchmarks/step.py profile cnn    # one core, torch's profiler, by operation
"""

import sys
import threading
import time

import torch
from torch.profiler import ProfilerActivity, profile

from comity.nn import MODELS, Descent, Model, Step, line_up


def descent(name: str, shape: tuple[int, int, int], nets: int) -> tuple[Descent, tuple[torch.Tensor, ...]]:
    models = [Model(MODELS[name](shape, 10)) for _ in range(nets)]
    line_up(models)
    x = torch.randn(10, *shape).contiguous(memory_format=torch.channels_last)
    batch = torch.randn(nets, 10, x[0].numel()) if models[0].stack else x
    return Descent(models, (), Step(lr=0.005), []), (
        batch,
        torch.randint(10, (nets, 10, 1)),
        torch.full((nets, 10, 1), 0.1),
    )


def stacked(nets: int, threads: int) -> float:
    """Milliseconds a client and step."""
    steps = max(20, 2000 // nets)
    begin = threading.Barrier(threads + 1)

    def work() -> None:
        way, batch = descent("mlp", (1, 28, 28), nets)
        begin.wait()
        for _ in range(steps):
            way.step(*batch)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    begin.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    return (time.perf_counter() - started) / (steps * nets * threads) * 1e3


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "stack":
        for nets in (1, 2, 4, 8, 16, 32):
            one, two = (min(stacked(nets, threads) for _ in range(3)) for threads in (1, 2))
            print(f"{nets:3d} nets: {one:.2f} ms on one core, {two:.2f} ms on two")
        return
    way, batch = descent(sys.argv[2], (3, 32, 32), 1)
    for _ in range(5):
        way.step(*batch)
    started = time.perf_counter()
    for _ in range(50):
        way.step(*batch)
    print(f"{sys.argv[2]}: {(time.perf_counter() - started) / 50 * 1e3:.2f} ms a step")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(50):
            way.step(*batch)
    print(profiler.key_averages(group_by_input_shape=True).table(sort_by="self_cpu_time_total", row_limit=15))


if __name__ == "__main__":
    main()
