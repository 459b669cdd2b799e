"""What a person meets who runs the agent on a machine of one's own."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pexpect
import psutil
import pytest
import typer
from typer.testing import CliRunner

from local import __main__ as local
from local.services import JSONObject, Reply, services, text_events
from local.stand_ins import picked_sentences, stand_in_fetch, stand_in_search
from local.superlink import CHECKOUT
from local.terminal import plain_console, show_run
from tests.processes import below, still_living
from tests.scripted import check_request

STOPPED = threading.Event()


def counting_model(request: JSONObject) -> Reply:
    """Answer with the number of questions in the conversation; fail when the last says so."""
    check_request(request)
    questions = [item["content"] for item in request["input"] if item.get("role") == "user"]
    if questions[-1] == "fail":
        return 404, {"error": {"message": "no such model"}}
    return text_events(words(len(questions), hang=questions[-1] == "hang"))


def words(questions: int, hang: bool) -> Iterator[str]:
    """Yield an answer's pieces, and at the end nothing for longer than anybody waits."""
    yield from (f"{n}, " for n in range(20))
    if hang:
        STOPPED.wait()
    yield f"so this is question {questions}."


@pytest.fixture
def model_endpoint() -> Iterator[str]:
    """Give the address of a model that counts the questions."""
    STOPPED.clear()
    with services(counting_model, stand_in_search, stand_in_fetch) as environment:
        yield environment["FLWR_MODEL_API_ENDPOINT"]
        STOPPED.set()


@contextmanager
def in_a_terminal(*arguments: str, **environ: str) -> Iterator[Any]:
    """Run the command in a terminal, and give what types into it and reads from it."""
    terminal = pexpect.spawn(
        sys.executable,
        ["-m", "local", *arguments],
        cwd=CHECKOUT,
        env=os.environ | environ,
        encoding="utf-8",
        timeout=60,
    )
    try:
        yield terminal
    finally:
        terminal.close(force=True)


def status_at_the_end(terminal: Any) -> int | None:
    """Wait for the command to end and return its exit status, None where a signal ended it."""
    terminal.expect(pexpect.EOF)
    terminal.wait()
    status: int | None = terminal.exitstatus
    return status


def test_a_conversation_goes_on_after_a_stop_and_a_failure_until_ctrl_d(
    model_endpoint: str,
) -> None:
    arguments = ("--max-tool-turns", "0")
    with in_a_terminal(*arguments, FLWR_MODEL_API_ENDPOINT=model_endpoint) as terminal:
        terminal.expect_exact("starting a SuperLink")
        terminal.expect_exact("\n> ")
        terminal.sendline("hang")
        terminal.expect_exact("thinking")
        terminal.expect_exact("14, ")
        terminal.sendintr()
        terminal.expect_exact("No answer: stopped")
        terminal.expect_exact("\n> ")

        terminal.sendline("fail")
        terminal.expect(r"No answer: The answer request failed: [^\n]* 404 [^\n]*no such model")
        terminal.expect_exact("\n> ")

        terminal.sendline("next")
        # The run that was stopped left nothing, the one that failed its question.
        terminal.expect_exact("so this is question 2.")
        terminal.expect_exact("\n> ")

        terminal.sendline("/new")
        terminal.expect_exact("\n> ")
        terminal.sendline("first")
        terminal.expect_exact("so this is question 1.")
        terminal.expect_exact("\n> ")

        started = below(terminal.pid)
        terminal.sendeof()
        assert status_at_the_end(terminal) == 0
        assert len(started) >= 2
        assert still_living(started) == []


@pytest.mark.parametrize(
    ("how", "status"),
    [
        pytest.param(signal.SIGINT, 0, id="ctrl-c"),
        pytest.param(signal.SIGKILL, None, id="killed"),
    ],
)
def test_leaving_the_prompt_leaves_no_process(
    how: signal.Signals, status: int | None, tmp_path: Path
) -> None:
    with in_a_terminal(TMPDIR=str(tmp_path)) as terminal:
        terminal.expect_exact("\n> ")
        started = below(terminal.pid)
        terminal.kill(how)
        assert status_at_the_end(terminal) == status
        # Only a command that was killed can't wait for the processes itself.
        _, left = psutil.wait_procs(started, timeout=10 if status is None else 0)
        assert still_living(left) == []


def test_a_question_without_an_answer_exits_with_1_and_the_reason(model_endpoint: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "local", "--max-tool-turns", "0", "fail"],
        cwd=CHECKOUT,
        env=os.environ | {"FLWR_MODEL_API_ENDPOINT": model_endpoint},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 1
    assert "No answer: The answer request failed" in done.stdout
    assert "no such model" in done.stdout
    assert "\x1b" not in done.stdout


def test_ctrl_c_while_a_question_is_answered_leaves_no_process(model_endpoint: str) -> None:
    arguments = ("--max-tool-turns", "0", "hang")
    with in_a_terminal(*arguments, FLWR_MODEL_API_ENDPOINT=model_endpoint) as terminal:
        terminal.expect_exact("14, ")
        started = below(terminal.pid)
        terminal.sendintr()
        terminal.expect_exact("No answer: stopped")
        assert status_at_the_end(terminal) == 1
        assert len(started) >= 3
        assert still_living(started) == []


@pytest.mark.parametrize(
    "arguments",
    [
        [""],
        ["  "],
        ["--model", " ", "q"],
        ["--max-tool-turns", "11"],
        ["--max-tool-turns", "x"],
        ["--max-research-seconds", "0"],
        ["--unknown"],
        ["two", "questions"],
    ],
)
def test_arguments_that_do_not_fit_get_a_usage_error(arguments: list[str]) -> None:
    app = typer.Typer()
    app.command()(local.main)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.output


# --- The terminal


def call(kind: str, call_id: str, **more: Any) -> JSONObject:
    """Return an event of a search."""
    return {
        "type": f"response.tool_call.{kind}",
        "tool_call_id": call_id,
        "connector_ref": "web_search",
        "arguments": {"query": f"query {call_id}"},
        **more,
    }


EVENTS = [
    call("started", "a"),
    call("started", "b"),
    call("completed", "b", output={}),
    call("failed", "a", error={"message": "no\nreply\x1b[2J"}),
    {"type": "response.output_text.delta", "delta": "An \x1b[31manswer,\n"},
    {"type": "response.output_text.delta", "delta": "whole."},
]


def shown(events: list[JSONObject], **console: Any) -> tuple[str, str | None]:
    """Return what a console shows of the events, and the reason for no answer."""
    file = StringIO()
    reason = show_run(plain_console(file=file, **console), iter(events))
    return file.getvalue(), reason


def test_piped_output_is_plain_and_free_of_escape_sequences() -> None:
    text, reason = shown([*EVENTS, {"type": "response.completed"}])
    assert reason is None
    assert text == (
        "✓ web_search: query b\n✗ web_search: query a: no reply[2J\nAn [31manswer,\nwhole.\n"
    )


def test_a_terminal_shows_what_is_being_done() -> None:
    text, _ = shown([*EVENTS, {"type": "response.completed"}], force_terminal=True)
    assert "web_search: query a" in text
    assert "0:00:00" in text


def test_an_answer_that_was_cut_is_marked() -> None:
    text, reason = shown([*EVENTS, {"type": "response.incomplete"}])
    assert reason is None
    assert text.endswith("whole.\n(The model cut the answer short.)\n")


def test_a_failure_is_told_in_one_line() -> None:
    _, reason = shown([*EVENTS, {"type": "error", "message": "The model\nfailed."}])
    assert reason == "The model failed."
    assert shown(EVENTS)[1] == ""


def test_the_stand_in_names_what_could_not_be_reached() -> None:
    page = {"title": "A page", "content": "Federated AI trains. Cats sleep. It is federated."}
    results: list[tuple[str, str, JSONObject]] = [
        ("web_fetch", "https://a.example", page),
        ("web_fetch", "https://b.example", {"error": "503"}),
    ]
    text = picked_sentences("What is federated AI?", results)
    assert text.startswith("I'm an offline stand-in")
    assert "- Federated AI trains. [A page](https://a.example)" in text
    assert "- Couldn't be reached: web_fetch https://b.example (503)" in text
    assert "Cats" not in text
