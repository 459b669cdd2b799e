"""Run commands while standard input is open, and leave no process and no folder of theirs behind.

`python -m local.keeper COMMANDS` does so however the process ends that holds the other end of its
input. COMMANDS is a JSON object of lists of arguments by name; in their environment, FLWR_HOME and
TMPDIR name a folder that lives as long. It prints the commands' process ids; all output of the
commands goes to standard error.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

POLL_SECONDS = 0.1


def main(commands: dict[str, list[str]]) -> None:
    """Start the commands, and end all of them when one of them ends or the input does."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda *_: sys.exit())
    home = tempfile.mkdtemp(prefix="research-agent-")
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            processes[name] = start(command, home)
        print(*(process.pid for process in processes.values()), flush=True)
        while not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
            for name, process in processes.items():
                if process.poll() is not None:
                    print(f"The {name} ended with status {process.returncode}.", file=sys.stderr)
                    sys.exit(1)
    finally:
        for process in processes.values():
            kill(process)
        shutil.rmtree(home, ignore_errors=True)


def start(command: list[str], home: str) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, to be able to end all that it starts."""
    return subprocess.Popen(
        command,
        env={**os.environ, "FLWR_HOME": home, "TMPDIR": home},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a command and all in its group at once: what they could save goes with the folder."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
