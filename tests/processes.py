"""The machine's processes."""

import psutil


def below(pid: int) -> list[psutil.Process]:
    """Return the processes that a process has started, and those that they have."""
    return psutil.Process(pid).children(recursive=True)


def still_living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that live; one that has ended and that nobody waits for doesn't."""
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
