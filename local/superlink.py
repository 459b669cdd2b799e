"""A private SuperLink on loopback: starting and stopping it, runs on it, and what they show."""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO

import grpc
import httpx
from flwr.app import UserConfig
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
# A first start has to compile Flower.
START_SECONDS = 60
TASK_SECONDS = 10
STOP_SECONDS = 5
POLL_SECONDS = 0.05
LOG_LINES = 10
ROOM_MB = 20
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# A SuperLink that ends when this process does, as a SuperExec can by itself: also where somebody
# has killed their keeper.
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
def superlink(environment: Mapping[str, str], commands: Path | None = None) -> Iterator[SuperLink]:
    """Start a SuperLink, yield it when it takes runs, and stop it with all its processes.

    `environment` is added to this process's own: the services' addresses and keys. `commands` is
    the folder of a Flower's commands, whose own SuperExec is used; without it, tasks are warm.
    Raises ``RuntimeError`` where the SuperLink doesn't start, or ends by itself.
    """
    check_proxy_settings()
    check_room()
    with ExitStack() as stack:
        ports = free_ports(2)
        try:
            link = stack.enter_context(superlink_on(ports, environment, commands))
        except RuntimeError:
            if not any(is_taken(port) for port in ports):
                raise
            # Somebody was quicker than the SuperLink to bind a port that was free.
            link = stack.enter_context(superlink_on(free_ports(2), environment, commands))
        yield link


@contextmanager
def superlink_on(
    ports: list[int], environment: Mapping[str, str], commands: Path | None
) -> Iterator[SuperLink]:
    """Do what `superlink` does, with the Control and the Runtime API on these ports."""
    control, runtime = (f"127.0.0.1:{port}" for port in ports)
    # gRPC would ask the machine's proxy for loopback, too, and wait long before it tries again.
    options = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 100)]
    with (
        tempfile.TemporaryFile() as log,
        grpc.insecure_channel(control, options) as channel,
        # Entered last, it is left first: requests that nobody answers any more end with it.
        kept(
            superlink_commands(commands, control, runtime),
            superlink_environment(commands or COMMANDS) | dict(environment),
            log,
        ) as (keeper, pids),
    ):
        # Made while the SuperLink starts, it takes no time of the first run.
        bundle(CHECKOUT)
        listens = partial(is_taken, ports[0])
        wait_for(listens, START_SECONDS, "The SuperLink doesn't answer", keeper, log)
        asks = partial(asks_for_tasks, log)
        wait_for(asks, TASK_SECONDS, "The SuperExec doesn't ask for tasks", keeper, log)
        try:
            yield SuperLink(control, ControlStub(channel), pids[-1])
        except grpc.RpcError as error:
            reason = error.details() if isinstance(error, grpc.Call) else error
            raise RuntimeError(f"The SuperLink failed: {reason}.{end_of(log)}") from error


def superlink_commands(commands: Path | None, control: str, runtime: str) -> dict[str, list[str]]:
    """Return the commands that end when this process does: one, or a Flower's SuperExec too."""
    arguments, parent = superlink_arguments(control, runtime), os.getpid()
    if commands is None:
        return {"SuperLink": [sys.executable, "-m", "local.warm", runtime, str(parent), *arguments]}
    script = MONITORED_SUPERLINK.format(parent=parent)
    return {
        "SuperLink": [str(commands / "python"), "-c", script, *arguments],
        "SuperExec": [
            *(str(commands / "flower-superexec"), "--insecure", "--plugin-type", "serverapp"),
            *("--appio-api-address", runtime, "--parent-pid", str(parent)),
        ],
    }


def superlink_arguments(control: str, runtime: str) -> list[str]:
    """Return the arguments of a SuperLink that serves these addresses and starts no process."""
    host, port = runtime.split(":")
    return [
        *("--insecure", "--simulation", "--isolation", "process"),
        *("--control-api-address", control, "--host", host, "--port", port),
    ]


def superlink_environment(commands: Path) -> dict[str, str]:
    """Return the environment of a SuperLink that keeps to itself and to loopback."""
    return {
        **os.environ,
        # Each task is a process: without bytecode on disk its start takes twice as long.
        "PYTHONDONTWRITEBYTECODE": "",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', '')}",
        "NO_PROXY": f"127.0.0.1,localhost,{os.environ.get('NO_PROXY', '')}",
        "no_proxy": f"127.0.0.1,localhost,{os.environ.get('no_proxy', '')}",
    }


def check_proxy_settings() -> None:
    """Raise ``RuntimeError`` where the HTTP client of Flower's tasks can't use the settings."""
    try:
        httpx.Client().close()
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        names = sorted(name for name in os.environ if name.lower().endswith("_proxy"))
        raise RuntimeError(
            f"Flower's HTTP client can't use the proxy settings in {', '.join(names)}: {error}"
        ) from error


def check_room() -> None:
    """Raise ``RuntimeError`` where the temporary folder has no room for a SuperLink."""
    folder = tempfile.gettempdir()
    if shutil.disk_usage(folder).free < ROOM_MB * 1_000_000:
        raise RuntimeError(f"The temporary folder {folder} has less than {ROOM_MB} MB free.")


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def is_taken(port: int) -> bool:
    """Return whether something on loopback listens on the port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def kept(
    commands: Mapping[str, list[str]], environment: Mapping[str, str], log: IO[bytes]
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Run named commands, yield their keeper and their process ids, and end them.

    The keeper ends when one of the commands does. Raises ``RuntimeError`` where it doesn't start.
    """
    keeper = subprocess.Popen(
        [sys.executable, "-m", "local.keeper", json.dumps(commands)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        # Ctrl-C in the terminal is meant for the client.
        start_new_session=True,
    )
    with keeper:
        assert keeper.stdout is not None
        pids = [int(pid) for pid in keeper.stdout.readline().split()]
        if not pids:
            raise RuntimeError(f"The SuperLink can't be started.{end_of(log)}")
        yield keeper, pids


def wait_for(
    condition: Callable[[], bool],
    seconds: float,
    failure: str,
    keeper: subprocess.Popen[str],
    log: IO[bytes],
) -> None:
    """Return when the condition holds; raise ``RuntimeError`` where it won't."""
    deadline = time.monotonic() + seconds
    while not condition():
        if keeper.poll() is not None:
            raise RuntimeError(f"The SuperLink didn't start.{end_of(log)}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{failure} within {seconds} seconds.{end_of(log)}")
        time.sleep(POLL_SECONDS)


def asks_for_tasks(log: IO[bytes]) -> bool:
    """Return whether the SuperLink has logged a SuperExec's request."""
    return "pull-pending-tasks" in contents(log)


def contents(log: IO[bytes]) -> str:
    """Return what a log holds, without its colours."""
    # The processes that write share the file's position, so this must not move it.
    text = os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")
    return COLOUR.sub("", text)


def end_of(log: IO[bytes]) -> str:
    """Return the last lines of a log, but for the requests, to follow a sentence."""
    lines = [line for line in contents(log).splitlines() if "[uvicorn.access]" not in line]
    return "\n".join([" The end of its log:", *lines[-LOG_LINES:]]) if lines else ""


def start_run(
    link: SuperLink, config: UserConfig, series_id: int | None = None, app: Path = CHECKOUT
) -> Run:
    """Start a run of the app in a folder, in a run series or in a new one."""
    fab = bundle(app)
    response = link.control.StartRun(
        StartRunRequest(
            fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab),
            override_config=user_config_to_proto(config),
            series_id=series_id,
        )
    )
    return Run(response.run_id, response.series_id)


@cache
def bundle(app: Path) -> bytes:
    """Return the bundle of the app in a folder, as `flwr build` makes it of what isn't hidden."""
    # Half a second of imports: the SuperLink starts meanwhile, and other commands don't need it.
    from flwr.cli.build import build_fab_from_files

    # `flwr build` looks at each file of the environment in `.venv` too, and takes seconds for it.
    shown = [app / ".gitignore", *app.glob("[!.]*")]
    paths = [path for entry in shown for path in (entry, *entry.rglob("*")) if path.is_file()]
    return build_fab_from_files({path.relative_to(app).as_posix(): path for path in paths})[0]


def stop_run(link: SuperLink, run: Run) -> None:
    """Stop a run; one that has ended already stays as it is."""
    with suppress(grpc.RpcError):
        link.control.StopRun(StopRunRequest(run_id=run.run_id), timeout=STOP_SECONDS)


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
