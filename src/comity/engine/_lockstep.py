"""Clients that train as one: how they take turns and wait for each other, and the training itself."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from comity.nn import Descent, Step, lines

if TYPE_CHECKING:
    from comity.engine._client import Client

BLOCK = 2_000_000
"""Bytes of samples to lay out at once for the steps to come."""


@dataclass(eq=False)
class Job:
    """A training that a client asks for."""

    client: "Client"
    epochs: int
    parts: tuple[str, ...]
    lr: float
    anchor: Tensor | None
    pull: float
    loss: float = field(default=math.nan, init=False)
    """Mean loss of a batch, when it is done."""
    error: Exception | None = field(default=None, init=False)

    @property
    def batch(self) -> int:
        return min(self.client.training.batch_size, len(self.client.data.train))

    @property
    def kind(self) -> tuple[object, ...]:
        """Jobs that agree in this can be done as one."""
        return self.parts, self.lr, self.anchor is None, self.pull, self.batch


class Seat:
    """A client at work in a thread of its own that runs when it is resumed, until it asks for training or is done."""

    def __init__(self, pool: ThreadPoolExecutor, work: Callable[["Seat"], None]) -> None:
        self.job: Job | None = None
        self._go, self._back = Lock(), Lock()
        self._go.acquire()
        self._back.acquire()
        self._end = pool.submit(self._run, work)

    def _run(self, work: Callable[["Seat"], None]) -> None:
        self._go.acquire()
        try:
            work(self)
        finally:
            self.job = None
            self._back.release()

    def resume(self) -> None:
        self._go.release()
        self._back.acquire()
        if self.job is None:
            self._end.result()

    def train(self, job: Job) -> None:
        """The client's own call: come back when it is done."""
        self.job = job
        self._back.release()
        self._go.acquire()
        if job.error is not None:
            raise job.error


def side_by_side(pool: ThreadPoolExecutor, works: Sequence[Callable[[Seat], None]]) -> None:
    """Do all works in turn: whenever all that are left wait for training, they are trained as one."""
    seats = [Seat(pool, work) for work in works]
    while seats:
        for seat in seats:
            seat.resume()
        seats = [seat for seat in seats if seat.job is not None]
        kinds: dict[tuple[object, ...], list[Job]] = defaultdict(list)
        for seat in seats:
            if seat.job is not None:
                kinds[seat.job.kind].append(seat.job)
        for jobs in kinds.values():
            try:
                train(jobs)
            except Exception as error:  # for the clients to fail with, who would otherwise wait for ever
                for job in jobs:
                    job.error = error


def train(jobs: Sequence[Job]) -> None:
    """Do jobs of one kind, those of neighbours as one as long as none of them has more batches than the one before."""
    start, orders = 0, [list(job.client.orders(job.epochs)) for job in jobs]
    for end in range(1, len(jobs) + 1):
        if end < len(jobs) and len(orders[end]) <= len(orders[end - 1]):
            left, right = jobs[end - 1].client.model, jobs[end].client.model
            if left.stack and left.stack is right.stack and right.seat == left.seat + 1:
                continue
        _train(jobs[start:end], orders[start:end])
        start = end


def _train(jobs: Sequence[Job], orders: Sequence[list[Tensor]]) -> None:
    first = jobs[0]
    models = [job.client.model for job in jobs]
    step = Step(lr=first.lr, decay=first.client.training.weight_decay, pull=first.pull)
    descent = Descent(models, first.parts, step, [job.anchor for job in jobs if job.anchor is not None])
    if models[0].stack:
        totals = _stacked(descent, jobs, orders)
    else:
        totals = torch.zeros(1)
        x, y = first.client.data.train.x, first.client.data.train.y
        for index in orders[0]:
            totals += descent.step(x[index], y[index].view(1, -1, 1), torch.full((1, len(index), 1), 1 / len(index)))
    for job, order, total in zip(jobs, orders, totals.tolist(), strict=True):
        job.loss = total / max(len(order), 1)


def _stacked(descent: Descent, jobs: Sequence[Job], orders: Sequence[list[Tensor]]) -> Tensor:
    """All steps of a stack of nets; the sum of each net's losses. Batches are filled up to one size."""
    totals = torch.zeros(len(jobs))
    if not orders[0]:
        return totals
    samples = [job.client.data.train.x.flatten(1) for job in jobs]
    batch, numbers = jobs[0].batch, samples[0].shape[1]
    width = lines(numbers)
    plans = [_plan(order, batch) for order in orders]
    steps = [len(order) for order in orders]
    shares = pad_sequence([share for _, share in plans], batch_first=True)[..., None]
    at_once = max(1, min(max(steps), BLOCK // (4 * len(jobs) * batch * width)))
    x = torch.zeros(len(jobs), at_once, batch, width)
    y = torch.empty(len(jobs), at_once, batch, 1, dtype=torch.int64)
    for start in range(0, max(steps), at_once):
        for i, (job, (index, _)) in enumerate(zip(jobs, plans, strict=True)):
            block = index[start : start + at_once]
            x[i, : len(block), :, :numbers] = samples[i][block]
            y[i, : len(block), :, 0] = job.client.data.train.y[block]
        for k in range(min(at_once, max(steps) - start)):
            nets = sum(count > start + k for count in steps)
            totals[:nets] += descent.step(x[:nets, k], y[:nets, k], shares[:nets, start + k])
    return totals


def _plan(order: list[Tensor], batch: int) -> tuple[Tensor, Tensor]:
    """(steps, batch) which samples, and their shares in the mean of their batch: zero for those that fill it up."""
    sizes = torch.tensor([[len(chosen)] for chosen in order])
    inside = torch.arange(batch) < sizes
    index = torch.zeros(len(order), batch, dtype=torch.int64)
    index[inside] = torch.cat(order)
    return index, inside / sizes
