"""The machine's processes, as `ps` lists them."""

import subprocess
from typing import NamedTuple


class Process(NamedTuple):
    """A process that lives."""

    pid: int
    parent: int
    group: int
    command: str


def living() -> list[Process]:
    """Return the processes that live; one that has ended and isn't waited for doesn't."""
    listed = subprocess.run(
        ["ps", "-ewwo", "pid=,ppid=,pgid=,stat=,args="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 4) for line in listed.stdout.splitlines())
    return [
        Process(int(pid), int(parent), int(group), command)
        for pid, parent, group, state, command in rows
        if not state.startswith("Z")
    ]


def below(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that they have."""
    processes = living()
    found, new = set[int](), {pid}
    while new:
        new = {process.pid for process in processes if process.parent in new}
        found |= new
    return found


def still_living(pids: set[int]) -> set[int]:
    """Return those of the processes that live."""
    return pids & {process.pid for process in living()}
