"""A SuperLink and its SuperExec, and tasks that are warm: forks of one process that has Flower.

`python -m local.warm ADDRESS PID ARGUMENTS` does so while the process PID lives: the SuperLink gets
ARGUMENTS, and serves the Runtime API at ADDRESS. It relies on this in Flower 1.35.0: a SuperExec
needs `PullPendingTasks` and `ClaimTask` alone, a task is a command with the arguments below, and
importing the commands leaves no thread behind that a fork would miss.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial

import flwr.superlink.main  # noqa: F401 (the SuperLink imports it when it starts)
import httpx
from flwr.proto.runtime_pb2 import ClaimTaskRequest, PullPendingTasksRequest
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.cli import flwr_agentapp, flwr_connector, flwr_model
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.cli import flower_superlink

TASKS = {
    TaskType.AGENT_APP: flwr_agentapp,
    TaskType.CONNECTOR: flwr_connector,
    TaskType.MODEL: flwr_model,
}
PAUSE_SECONDS = 0.1


def main(address: str, parent_pid: int, arguments: list[str]) -> None:
    """Fork the SuperLink, a process that claims tasks, and then one for each task that it claims.

    This process itself starts no thread and opens no connection, so that it can be forked safely.
    """
    superlink = os.fork()
    if not superlink:
        start_parent_process_monitor(parent_pid)
        sys.argv = ["flower-superlink", *arguments]
        flower_superlink()
        sys.exit()
    signal.signal(signal.SIGCHLD, partial(end_with, superlink))
    source, sink = os.pipe()
    if forked():
        os.close(source)
        start_parent_process_monitor(parent_pid)
        claim_tasks(address, sink)
    os.close(sink)
    with os.fdopen(source) as claimed:
        for line in claimed:
            if forked():
                claimed.close()
                run_task(address, *json.loads(line))


def forked() -> bool:
    """Fork, and return whether this is the new process."""
    if os.fork():
        return False
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return True


def end_with(superlink: int, *_: object) -> None:
    """Forget the processes that have ended; end with the SuperLink's status when it is one."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == superlink:
                sys.exit(os.waitstatus_to_exitcode(ended[1]))


def claim_tasks(address: str, sink: int) -> None:
    """Write a line with the type and the token of each task that it claims, for ever."""
    client = RuntimeHttpClient.from_server_address(
        address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
    )
    while True:
        try:
            for task in client.PullPendingTasks(PullPendingTasksRequest()).tasks:
                token = client.ClaimTask(ClaimTaskRequest(task_id=task.task_id)).token
                if token:
                    os.write(sink, f"{json.dumps([task.type, token])}\n".encode())
        except httpx.TransportError:
            # The SuperLink starts at the same time; when it ends, so does this process's parent.
            pass
        time.sleep(PAUSE_SECONDS)


def run_task(address: str, task_type: str, token: str) -> None:
    """Run a task as its command would, and end this process."""
    if task_type == TaskType.AGENT_APP:
        # As Flower's own SuperExec does: the run's log has its output.
        for output in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    sys.argv = [task_type, "--insecure", "--serverappio-api-address", address, "--token", token]
    sys.argv += ["--parent-pid", str(os.getppid())]
    # All that a task leaves is with the SuperLink when Flower ends it.
    with suppress(SystemExit):
        TASKS[TaskType(task_type)]()
    sys.stdout.flush()
    sys.stderr.flush()
    # To clear up would write to all the memory that forks share, and so copy it.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
