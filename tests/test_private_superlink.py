"""How the private SuperLink starts, runs its tasks and ends."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import typer
from typer.testing import CliRunner

from local import __main__ as local
from local import superlink as module
from local.services import JSONObject, Reply, services, text_events
from local.stand_ins import stand_in_fetch, stand_in_search
from local.superlink import CHECKOUT, free_ports, run_events, start_run, superlink
from tests.conftest import Bench
from tests.processes import below, still_living
from tests.terminals import Command

NO_RESEARCH = {"agent.max-tool-turns": 0}


def test_each_task_is_a_fork_of_the_superexec(bench: Bench) -> None:
    seen = threading.Event()

    def words() -> Iterator[str]:
        yield from (f"{n} " for n in range(20))
        seen.wait(30)

    run = bench.start("forks", text_events(words()), **NO_RESEARCH)
    events = run_events(bench.link, run)
    assert any(event["type"] == "response.output_text.delta" for event in events)
    superexec = psutil.Process(bench.link.superexec)
    forks = [fork.cmdline() for fork in superexec.children()]
    seen.set()
    bench.finish("forks", run)
    # At least the SuperLink, what claims the tasks, the app, and its model request.
    assert len(forks) >= 4
    assert all(fork == superexec.cmdline() for fork in forks)


# --- A start that fails


def commands(folder: Path, python: str, superexec: str) -> Path:
    """Return a folder with these shell scripts as the commands of a Flower."""
    for name, script in (("python", python), ("flower-superexec", superexec)):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def failure(commands: Path | None = None) -> str:
    """Return why a SuperLink doesn't start."""
    with pytest.raises(RuntimeError) as error, superlink({}, commands):
        pass
    return str(error.value)


PYTHON = f'exec {sys.executable} "$@"'


def test_a_superlink_that_ends_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    reason = failure(commands(tmp_path, "echo out of order; exit 3", "exec sleep 60"))
    assert reason.startswith("The SuperLink didn't start. ")
    assert reason.endswith("out of order\nThe SuperLink ended with status 3.")


def test_a_superexec_that_ends_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    reason = failure(commands(tmp_path, PYTHON, "echo out of order; exit 4"))
    assert reason.startswith("The SuperLink didn't start. ")
    assert reason.endswith("out of order\nThe SuperExec ended with status 4.")


def test_a_superexec_that_never_takes_a_task_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TASK_SECONDS", 0.5)
    reason = failure(commands(tmp_path, PYTHON, "exec sleep 60"))
    assert reason.startswith("The SuperExec doesn't ask for tasks within 0.5 seconds. ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1080"),
        ("NO_PROXY", "localhost,[::1]"),
        ("NO_PROXY", "fd00::/8"),
        ("HTTPS_PROXY", "http://proxy.example:port"),
    ],
)
def test_proxy_settings_that_flower_cannot_use_are_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    reason = failure()
    assert reason.startswith("Flower's HTTP client can't use the proxy settings in ")
    assert name in reason


def test_a_temporary_folder_without_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM_MB", 1 << 42)
    assert failure().startswith("The temporary folder /")


@pytest.mark.parametrize("lost", ["control", "runtime"])
def test_a_port_that_somebody_else_took_is_replaced(
    lost: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, port = int(bench.link.address.rpartition(":")[2]), free_ports(1)[0]
    choices = [[taken, port] if lost == "control" else [port, taken], free_ports(2)]
    monkeypatch.setattr(module, "free_ports", lambda _count: choices.pop(0))
    with superlink({}) as link:
        assert link.address != bench.link.address
    assert choices == []


def test_a_superlink_that_ends_in_a_run_is_told(bench: Bench) -> None:
    asked = threading.Event()

    def hangs(_request: JSONObject) -> Reply:
        asked.set()
        bench.end.wait(30)
        return {}

    def kill_superexec(environment: dict[str, str]) -> None:
        with superlink(environment) as link:
            run = start_run(link, {"agent.input": "hang", **NO_RESEARCH})
            assert asked.wait(30)
            os.kill(link.superexec, signal.SIGKILL)
            list(run_events(link, run))

    with (
        services(hangs, stand_in_search, stand_in_fetch) as environment,
        pytest.raises(RuntimeError, match="The SuperLink ended with status -9"),
    ):
        kill_superexec(environment)


def test_the_command_tells_a_failure_in_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "local", "Why?"],
        cwd=CHECKOUT,
        env=os.environ | {"ALL_PROXY": "socks5://127.0.0.1:1080"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    services, reason = done.stderr.splitlines()
    assert services.startswith("model: ")
    assert "ALL_PROXY" in reason


@pytest.mark.parametrize("arguments", [["Why?"], ["--debug", "Why?"]])
def test_an_unexpected_error_shows_no_key(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(environment: dict[str, str], **_: object) -> None:
        key = os.environ["FLWR_MODEL_API_KEY"]
        raise KeyError(f"a surprise beside a key of {len(key)} characters, {len(environment)}")

    monkeypatch.setenv("FLWR_MODEL_API_KEY", "SECRET-KEY")
    monkeypatch.setattr(local, "superlink", fails)
    monkeypatch.setattr(local, "whole_question", lambda question, _err: question)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(local.main)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "KeyError: 'a surprise" in result.output
    assert "SECRET-KEY" not in result.output
    assert ("Traceback" in result.output) == ("--debug" in arguments)


# --- An end

NEVER_ENDS = """
from time import sleep
from local import endings
endings.END_SECONDS = 1
endings.end_on_signals()
try:
    print("ready", flush=True)
    sleep(60)
finally:
    sleep(60)
"""


def test_a_signal_ends_even_what_hangs_at_its_end() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NEVER_ENDS], cwd=CHECKOUT, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"ready"
        process.terminate()
        assert process.wait(10) == -signal.SIGALRM


@contextmanager
def hanging_model() -> Iterator[str]:
    """Give the address of a model whose answers begin and don't end."""
    end = threading.Event()

    def words() -> Iterator[str]:
        yield from (f"{n}, " for n in range(20))
        end.wait()
        yield "end"

    with services(lambda _: text_events(words()), stand_in_search, stand_in_fetch) as addresses:
        yield addresses["FLWR_MODEL_API_ENDPOINT"]
        end.set()


def interrupt_twice(terminal: Command) -> None:
    """Press Ctrl-C, and again when an answer has been stopped."""
    terminal.type("\x03")
    if "14," in terminal.screen.text():
        terminal.wait_for_prompt()
        terminal.type("\x03")


ENDS: dict[str, Callable[[Command], None]] = {
    "terminated": lambda terminal: terminal.process.kill(signal.SIGTERM),
    "hung-up": lambda terminal: terminal.process.kill(signal.SIGHUP),
    "killed": lambda terminal: terminal.process.kill(signal.SIGKILL),
    "interrupted-twice": interrupt_twice,
}


def check_that_nothing_is_left(started: list[psutil.Process], folder: Path) -> None:
    """Check that the processes end soon, and leave nothing in the folder of temporary files."""
    _, left = psutil.wait_procs(started, timeout=10)
    assert still_living(left) == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("when", ["while starting", "at the prompt", "in an answer"])
@pytest.mark.parametrize("how", ENDS)
def test_an_end_leaves_no_process_and_no_folder(when: str, how: str, tmp_path: Path) -> None:
    with hanging_model() as endpoint:
        terminal = Command(
            *("-m", "local", "--max-tool-turns", "0"),
            FLWR_MODEL_API_ENDPOINT=endpoint,
            TMPDIR=str(tmp_path),
        )
        try:
            terminal.wait_for("starting a SuperLink")
            if when != "while starting":
                terminal.wait_for_prompt()
            if when == "in an answer":
                terminal.type("hang\r")
                terminal.wait_for("14,")
            terminal.wait_until(lambda: bool(below(terminal.process.pid)))
            started = [psutil.Process(terminal.process.pid), *below(terminal.process.pid)]
            ENDS[how](terminal)
            terminal.wait_until(lambda: terminal.process.flag_eof, seconds=10)
        finally:
            terminal.process.close(force=True)
        check_that_nothing_is_left(started, tmp_path)


@pytest.mark.parametrize("when", ["while starting", "in an answer"])
def test_an_output_that_nobody_reads_any_more_ends_the_command(when: str, tmp_path: Path) -> None:
    with (
        hanging_model() as endpoint,
        subprocess.Popen(
            [sys.executable, "-m", "local", "--max-tool-turns", "0", "hang"],
            cwd=CHECKOUT,
            env=os.environ | {"FLWR_MODEL_API_ENDPOINT": endpoint, "TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        ) as command,
    ):
        assert command.stdout is not None
        if when == "in an answer":
            assert command.stdout.read(4)
        started: list[psutil.Process] = []
        while not started:
            started = below(command.pid)
        command.stdout.close()
        check_that_nothing_is_left([psutil.Process(command.pid), *started], tmp_path)
