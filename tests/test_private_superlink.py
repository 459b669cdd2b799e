"""How the private SuperLink starts, runs its tasks and ends."""

import threading
from collections.abc import Iterator

import psutil

from local.services import text_events
from local.superlink import run_events
from tests.conftest import Bench


def test_each_task_is_a_fork_of_the_superexec(bench: Bench) -> None:
    seen = threading.Event()

    def words() -> Iterator[str]:
        yield from (f"{n} " for n in range(20))
        seen.wait(30)

    run = bench.start("forks", text_events(words()), **{"agent.max-tool-turns": 0})
    events = run_events(bench.link, run)
    assert any(event["type"] == "response.output_text.delta" for event in events)
    superexec = psutil.Process(bench.link.superexec)
    forks = [fork.cmdline() for fork in superexec.children()]
    seen.set()
    bench.finish("forks", run)
    # What claims the tasks, the app, and its model request.
    assert forks == [superexec.cmdline()] * 3
