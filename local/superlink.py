"""A private SuperLink on loopback: starting and stopping it, runs on it, and what they show."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
from flwr.app import UserConfig
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import context_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    GetRunSeriesRequest,
    ListRunsRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    StreamRunEventsRequest,
)
from flwr.proto.control_pb2_grpc import ControlStub
from flwr.proto.fab_pb2 import Fab

from local.services import JSONObject
from research_agent import agent_app

CHECKOUT = Path(__file__).parent.parent
COMMANDS = Path(sys.executable).parent
START_SECONDS = 60
STOP_SECONDS = 10

# A SuperLink that ends when this process does, however that ends, as a SuperExec can by itself.
MONITORED_SUPERLINK = """
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.superlink.cli.flower_superlink import flower_superlink
start_parent_process_monitor({parent})
flower_superlink()
"""


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink: its Control API, and the process that starts those of its runs."""

    address: str
    control: ControlStub
    superexec: int


@dataclass(frozen=True)
class Run:
    """A started run and the run series that it belongs to."""

    run_id: int
    series_id: int


@contextmanager
def superlink(environment: Mapping[str, str], commands: Path = COMMANDS) -> Iterator[SuperLink]:
    """Start a SuperLink, yield it when it takes runs, and stop it with all its processes.

    `environment` is added to this process's own: the services' addresses and keys. `commands` is
    the folder of a Flower's commands. Raises ``RuntimeError`` where the SuperLink doesn't start.
    """
    control, runtime = (f"127.0.0.1:{port}" for port in free_ports(2))
    with tempfile.TemporaryDirectory(prefix="research-agent-") as home, ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [commands / command[0], *command[1:], "--insecure"],
                env=superlink_environment(home, commands) | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A group of its own: Ctrl-C in the terminal is meant for the client.
                start_new_session=True,
            )
            stack.callback(stop, process)
            return process

        log = stack.enter_context(Path(home, "superlink.log").open("w+"))
        host, port = runtime.split(":")
        server = start(
            *("python", "-c", MONITORED_SUPERLINK.format(parent=os.getpid())),
            *("--simulation", "--isolation", "process", "--control-api-address", control),
            *("--host", host, "--port", port),
        )
        # A SuperLink that starts its SuperExec by itself detaches it from its own group.
        superexec = start(
            "flower-superexec",
            *("--appio-api-address", runtime, "--plugin-type", "serverapp"),
            *("--parent-pid", str(os.getpid())),
        )
        # gRPC would ask the machine's proxy for loopback, too.
        direct = [("grpc.enable_http_proxy", 0)]
        channel = stack.enter_context(grpc.insecure_channel(control, direct))
        if not answers(channel, server):
            log.seek(0)
            raise RuntimeError(
                f"The SuperLink didn't start. The end of its log:\n{log.read()[-2000:]}"
            )
        yield SuperLink(control, ControlStub(channel), superexec.pid)


def superlink_environment(home: str, commands: Path) -> dict[str, str]:
    """Return the environment of a SuperLink that keeps to itself and to loopback."""
    return {
        **os.environ,
        # Each task is a process: without bytecode on disk its start takes twice as long.
        "PYTHONDONTWRITEBYTECODE": "",
        "FLWR_HOME": home,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', '')}",
        "NO_PROXY": f"127.0.0.1,localhost,{os.environ.get('NO_PROXY', '')}",
        "no_proxy": f"127.0.0.1,localhost,{os.environ.get('no_proxy', '')}",
    }


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def answers(channel: grpc.Channel, server: subprocess.Popen[bytes]) -> bool:
    """Wait for the Control API and return whether it answers."""
    ready = grpc.channel_ready_future(channel)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(grpc.FutureTimeoutError):
            ready.result(timeout=0.1)
            return True
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all in its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def start_run(
    link: SuperLink, config: UserConfig, series_id: int | None = None, app: Path = CHECKOUT
) -> Run:
    """Start a run of the app in a folder, in a run series or in a new one."""
    fab = build_fab_from_disk(app)
    response = link.control.StartRun(
        StartRunRequest(
            fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab),
            override_config=user_config_to_proto(config),
            series_id=series_id,
        )
    )
    return Run(response.run_id, response.series_id)


def stop_run(link: SuperLink, run: Run) -> None:
    """Stop a run; one that has ended already stays as it is."""
    with suppress(grpc.RpcError):
        link.control.StopRun(StopRunRequest(run_id=run.run_id))


def run_events(link: SuperLink, run: Run) -> Iterator[JSONObject]:
    """Yield a run's events as a chat client gets them, until the run has ended."""
    for response in link.control.StreamRunEvents(StreamRunEventsRequest(run_id=run.run_id)):
        yield json.loads(response.task_event.data)


def wait_for_end(link: SuperLink, run: Run) -> None:
    """Return when the run has ended and what it leaves is stored."""
    for _ in run_events(link, run):
        continue


def run_log(link: SuperLink, run: Run) -> str:
    """Return a run's log once the run has ended."""
    request = StreamLogsRequest(run_id=run.run_id, after_timestamp=0.0)
    return "".join(response.log_output for response in link.control.StreamLogs(request))


def run_status(link: SuperLink, run: Run) -> tuple[str, str]:
    """Return a run's status, such as ``finished:failed``, and its details."""
    response = link.control.ListRuns(ListRunsRequest(run_id=run.run_id))
    status = response.run_dict[run.run_id].status
    return f"{status.status}:{status.sub_status}".rstrip(":"), status.details


def stored_items(link: SuperLink, run: Run) -> list[JSONObject]:
    """Return the items that the run's series holds."""
    response = link.control.GetRunSeries(GetRunSeriesRequest(series_id=run.series_id))
    context = context_from_proto(response.context)
    return [json.loads(item) for item in agent_app.stored_items(context)]
