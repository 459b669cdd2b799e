"""What a person meets who runs the agent on a machine of one's own."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from local import __main__ as local
from local.services import JSONObject, Reply, services, text_events
from local.stand_ins import picked_sentences, stand_in_fetch, stand_in_search
from local.superlink import CHECKOUT
from tests.processes import below, still_living
from tests.scripted import check_request
from tests.terminals import Command

CTRL_C, CTRL_D = "\x03", "\x04"
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
def in_a_terminal(*arguments: str, **environ: str) -> Iterator[Command]:
    """Run the command in a wide terminal."""
    command = Command("-m", "local", *arguments, columns=200, lines=50, **environ)
    try:
        yield command
    finally:
        command.process.close(force=True)


def test_a_conversation_goes_on_after_a_stop_and_a_failure_until_ctrl_d(
    model_endpoint: str,
) -> None:
    arguments = ("--max-tool-turns", "0")
    with in_a_terminal(*arguments, FLWR_MODEL_API_ENDPOINT=model_endpoint) as terminal:
        terminal.wait_for("starting a SuperLink")
        terminal.wait_for_prompt()
        terminal.type("hang\r")
        terminal.wait_for("thinking")
        terminal.wait_for("14,")
        terminal.type(CTRL_C)
        terminal.wait_for("No answer: stopped")
        terminal.wait_for_prompt()

        terminal.type("fail\r")
        terminal.wait_for("No answer: The answer request failed: ")
        terminal.wait_for("no such model")
        terminal.wait_for_prompt()

        terminal.type("next\r")
        # The run that was stopped left nothing, the one that failed its question.
        terminal.wait_for("so this is question 2.")
        terminal.wait_for_prompt()

        terminal.type("/nex\r")
        terminal.wait_for("There is no command /nex")
        terminal.wait_for_prompt()
        terminal.type("/new\r")
        terminal.wait_for("What was said before is left out")
        terminal.wait_for_prompt()
        terminal.type("first\r")
        terminal.wait_for("so this is question 1.")
        terminal.wait_for_prompt()

        started = below(terminal.process.pid)
        terminal.type(CTRL_D)
        assert terminal.status() == 0
        assert len(started) >= 2
        assert still_living(started) == []


def test_leaving_the_prompt_leaves_no_process(tmp_path: Path) -> None:
    with in_a_terminal(TMPDIR=str(tmp_path)) as terminal:
        terminal.wait_for_prompt()
        started = below(terminal.process.pid)
        terminal.process.kill(signal.SIGINT)
        assert terminal.status() == 0
        assert still_living(started) == []


def test_a_question_without_an_answer_exits_with_1_and_the_reason(model_endpoint: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "local", "--max-tool-turns", "0", "fail"],
        cwd=CHECKOUT,
        env=os.environ | {"FLWR_MODEL_API_ENDPOINT": model_endpoint},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "No answer: The answer request failed" in done.stderr
    assert "no such model" in done.stderr
    assert "\x1b" not in done.stderr


def test_ctrl_c_while_a_question_is_answered_leaves_no_process(model_endpoint: str) -> None:
    arguments = ("--max-tool-turns", "0", "hang")
    with in_a_terminal(*arguments, FLWR_MODEL_API_ENDPOINT=model_endpoint) as terminal:
        terminal.wait_for("14,")
        started = below(terminal.process.pid)
        terminal.type(CTRL_C)
        terminal.wait_for("No answer: stopped")
        assert terminal.status() == 1
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
