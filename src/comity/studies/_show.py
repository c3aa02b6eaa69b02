"""What a person sees while a study goes on."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from comity.studies._crew import Job, Message


class Show:
    """Bars on a terminal, a plain line for each run elsewhere; ``Show()`` without a console says nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console
        self.bars: Progress | None = None

    def say(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, highlight=False)

    def begin(self, jobs: Sequence[Job], done: int) -> None:
        """``jobs`` are to do, ``done`` runs were done before."""
        self.total, self.done = done + len(jobs), done
        self.left = {job: job.config.last_round for job in jobs}
        self.rounds, self.started = 0, time.monotonic()
        self.tasks: dict[Job, TaskID] = {}
        if self.console is not None and self.console.is_terminal and jobs:
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.fields[told]}"))
            self.bars = Progress(*columns, console=self.console, transient=True)
            self.bars.start()
            self.overall = self.bars.add_task("", told="")
            self._draw()

    def hear(self, job: Job, message: Message) -> None:
        if "end" in message:
            self.left[job] = 0
            self.done += message["end"] == "done"
            if self.bars is not None and job in self.tasks:
                self.bars.remove_task(self.tasks.pop(job))
            failed = f"[red]failed: {escape(str(message.get('error')))}[/]" if message["end"] == "failed" else ""
            if failed or self.bars is None:
                self.say(f"{self.done}/{self.total} {escape(job.title)}: {failed or message['end']}{self._time()}")
        else:
            self.rounds += 1
            self.left[job] = job.config.last_round - message["round"]
            if self.bars is not None:
                if job not in self.tasks:
                    self.tasks[job] = self.bars.add_task(f"  {escape(job.title)}", total=job.config.last_round, told="")
                self.bars.update(self.tasks[job], completed=message["round"])
                if message["accuracy"] is not None:
                    self.bars.update(self.tasks[job], told=f"{100 * message['accuracy']:.1f} %")
        self._draw()

    def _time(self) -> str:
        """By the rounds that are left, as if they all took as long as those so far."""
        seconds = (time.monotonic() - self.started) / max(1, self.rounds) * sum(self.left.values())
        return f" · about {duration(seconds)} left" if self.rounds and seconds >= 1 else ""

    def _draw(self) -> None:
        if self.bars is not None:
            total = self.rounds + sum(self.left.values())
            name = f"{self.done}/{self.total} runs"
            self.bars.update(
                self.overall, description=name, completed=self.rounds, total=total, told=self._time().strip(" ·")
            )

    def end(self) -> None:
        if self.bars is not None:
            self.bars.stop()
            self.bars = None


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
