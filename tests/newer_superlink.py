"""The SuperLink of a newer Flower and its own SuperExec, run by that Flower's Python.

The argument is a JSON object: the arguments of both by name. Flower is imported once: both, and the
tasks that the SuperExec starts, are forks of one process.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import flwr.superlink.main  # noqa: F401 (the SuperLink imports it when it starts)
from flwr.supercore.cli import flower_superexec, flwr_agentapp, flwr_connector, flwr_model
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.superlink.cli import flower_superlink

COMMANDS = {
    "flower-superlink": flower_superlink,
    "flower-superexec": flower_superexec,
    "flwr-agentapp": flwr_agentapp,
    "flwr-connector": flwr_connector,
    "flwr-model": flwr_model,
}


def fork(command: list[str], **_: Any) -> None:
    """Run a command of Flower's in a fork of this process."""
    if os.fork():
        return
    sys.argv = command
    run: Callable[[], object] = COMMANDS[command[0]]
    with suppress(SystemExit):
        run()
    os._exit(0)


if __name__ == "__main__":
    # What starts tasks, and nothing else, forks them.
    vars(subprocess_executor)["subprocess"] = SimpleNamespace(Popen=fork, DEVNULL=None)
    for name, arguments in json.loads(sys.argv[1]).items():
        fork([name, *arguments])
    os.wait()
