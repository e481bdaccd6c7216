"""Orders that this process fulfils itself, as another would: for tests, which start no process for it."""

from __future__ import annotations

from shapedispatch.background.children import Task
from shapedispatch.background.orders import Orders

__all__ = ["BuiltHere", "orders_built_here"]


class BuiltHere:
    """In place of `children.Children`; with ``paused`` nothing is done until a test says so."""

    def __init__(self) -> None:
        self.paused = False
        self.tasks: list[Task] = []

    def free(self) -> bool:
        """Always."""
        return True

    def begin(self, job: bytes) -> Task:
        """Note it, and do it unless paused."""
        self.tasks.append(Task(job))
        self.poll()
        return self.tasks[-1]

    def poll(self) -> bool:
        """Do what is left to do."""
        from shapedispatch.functions.compile.remote import compiled

        for task in self.tasks:
            if not task.over and not self.paused:
                task.answer = compiled(task.job)
        return True

    def wait(self, timeout_s: float) -> None:
        """There is nothing to wait for."""
        self.paused = False

    def close(self) -> None:
        """There is nothing to end."""


def orders_built_here() -> tuple[Orders, BuiltHere]:
    """Orders, and who fulfils them; they may be asked at every call."""
    here = BuiltHere()
    seconds = iter(range(1 << 30))
    return Orders(lambda: here, clock_s=lambda: float(next(seconds))), here  # type: ignore[arg-type,return-value]  # as above
