"""Progress of a study on the terminal."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from comity.studies._crew import Job, Message


class Show:
    """Progress bars in a terminal, otherwise one line per finished run; ``Show()`` without a console prints nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self.console, self.silent = console, True

    def say_first(self) -> None:
        """Print a line before torch is imported, unless there was one."""
        if self.silent:
            self.say("Reading data …")

    def say(self, text: str) -> None:
        self.silent = False
        if self.console is not None:
            self.console.print(text, highlight=False)

    def begin(self, jobs: Sequence[Job], done: int) -> None:
        """``jobs`` are to be done, ``done`` runs were done before."""
        self.total, self.done = done + len(jobs), done
        self.left = {job: job.config.last_round for job in jobs}
        self.rounds, self.started = 0, time.monotonic()
        self.tasks: dict[Job, TaskID] = {}
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.fields[note]}"))
        hidden = self.console is None or not self.console.is_terminal or not jobs
        self.bars = Progress(*columns, console=self.console, transient=True, disable=hidden)
        self.overall = self.bars.add_task("", note="")
        self.bars.start()

    def hear(self, job: Job, message: Message) -> None:
        if "end" in message:
            self.left[job] = 0
            self.done += message["end"] == "done"
            if job in self.tasks:
                self.bars.remove_task(self.tasks.pop(job))
            failed = f"[red]failed: {escape(str(message.get('error')))}[/]" if message["end"] == "failed" else ""
            if failed or self.bars.disable:
                self.say(f"{self.done}/{self.total} {escape(job.title)}: {failed or message['end']}{self._time()}")
        else:
            self.rounds += 1
            self.left[job] = job.config.last_round - message["round"]
            if job not in self.tasks:
                self.tasks[job] = self.bars.add_task(f"  {escape(job.title)}", total=job.config.last_round, note="")
            self.bars.update(self.tasks[job], completed=message["round"])
            if message["accuracy"] is not None:
                self.bars.update(self.tasks[job], note=f"{100 * message['accuracy']:.1f} %")
        total, name = self.rounds + sum(self.left.values()), f"{self.done}/{self.total} runs"
        note = self._time().strip(" ·")
        self.bars.update(self.overall, description=name, completed=self.rounds, total=total, note=note)

    def _time(self) -> str:
        """Estimated time of the remaining rounds, at the mean speed so far."""
        seconds = (time.monotonic() - self.started) / max(1, self.rounds) * sum(self.left.values())
        return f" · about {duration(seconds)} left" if self.rounds and seconds >= 1 else ""

    def end(self) -> None:
        self.bars.stop()


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
