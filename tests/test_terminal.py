"""What a person sees of a run, on terminals of several kinds, in files and in pipes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO, StringIO, TextIOWrapper
from tempfile import TemporaryFile
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from rich.cells import cell_len
from rich.console import Console

from local import prompt
from local.answer import DrawnAnswer
from local.prompt import HELP, MAX_PIPED_BYTES, is_command, prompt_session, typed, whole_question
from local.screen import console_on
from local.services import JSONObject
from local.superlink import CHECKOUT
from local.terminal import show_run
from tests.terminals import Command, Screen

CTRL_D = "\x04"
END = {"type": "response.completed"}

MARKDOWN = """\
# Federated AI

It **trains** models where the data lives [What is it?](https://federated.example/what-is-it).

- One item, see [here](https://a.example/a/path/that/is/longer/than/the/forty/columns).
- 联邦学习是一种机器学习技术它在多个持有本地数据的设备上训练算法而不交换其数据样本。 😀
   - a nested one

9. nine
1. ten

```python
def f(x: int) -> int:
    return x + 1
```

| Name | Site |
|---|---|
| 联邦 | [site](https://table.example/with/a/long/path) |
| vector<int> | <https://auto.example> |

> Two lines
> of a [paper][1]

[1]: https://paper.example/1
[2]: https://paper.example/2

---

- The address https://made.up/x stands in no source.
"""

AT_80_COLUMNS = """\
                                  Federated AI

It trains models where the data lives What is it?
(https://federated.example/what-is-it).

 • One item, see here
   (https://a.example/a/path/that/is/longer/than/the/forty/columns).
 • 联邦学习是一种机器学习技术它在多个持有本地数据的设备上训练算法而不交换其数据
   样本。 😀
    • a nested one

  9 nine
 10 ten


 def f(x: int) -> int:
     return x + 1


 Name         Site
 ──────────────────────────────────────────────────────────
 联邦         site (https://table.example/with/a/long/path)
 vector<int>  https://auto.example

▌ Two lines
▌ of a [paper][1]

[1]: https://paper.example/1
[2]: https://paper.example/2

--------------------------------------------------------------------------------

 • The address https://made.up/x stands in no source."""

AT_40_COLUMNS = """\
              Federated AI

It trains models where the data lives
What is it?
(https://federated.example/what-is-it).

 • One item, see here
   (https://a.example/a/path/that/is/lon
   ger/than/the/forty/columns).
 • 联邦学习是一种机器学习技术它在多个持
   有本地数据的设备上训练算法而不交换其
   数据样本。 😀
    • a nested one

  9 nine
 10 ten


 def f(x: int) -> int:
     return x + 1


 Name         Site
 ──────────────────────────────────────
 联邦         site
              (https://table.example/wi
              th/a/long/path)
 vector<int>  https://auto.example

▌ Two lines
▌ of a [paper][1]

[1]: https://paper.example/1
[2]: https://paper.example/2

----------------------------------------

 • The address https://made.up/x stands
   in no source."""


def delta(text: object) -> JSONObject:
    """Return an event with more of an answer."""
    return {"type": "response.output_text.delta", "delta": text}


def call(kind: str, call_id: str, **more: Any) -> JSONObject:
    """Return an event of a search."""
    return {
        "type": f"response.tool_call.{kind}",
        "tool_call_id": call_id,
        "connector_ref": "web_search",
        "arguments": {"query": f"query {call_id}"},
        **more,
    }


def consoles(columns: int = 80, lines: int = 24) -> tuple[Screen, Console, Console]:
    """Return a terminal, and standard output and standard error on it."""
    screen = Screen(columns, lines)
    out, err = console_on(screen), console_on(screen)
    out.size = err.size = columns, lines
    return screen, out, err


def shown(
    events: Iterable[JSONObject], columns: int = 80, lines: int = 24
) -> tuple[str, str | None]:
    """Return what a terminal shows of the events, and the reason for no answer."""
    screen, out, err = consoles(columns, lines)
    reason = show_run(out, err, events)
    return screen.text(), reason


def in_files(events: Iterable[JSONObject]) -> tuple[str, str, str | None]:
    """Return what goes to standard output and to standard error, and the reason for no answer."""
    out, err = StringIO(), StringIO()
    reason = show_run(console_on(out), console_on(err), events)
    return out.getvalue(), err.getvalue(), reason


@pytest.fixture(autouse=True)
def a_usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment say what a terminal's usually does."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


# --- Files and pipes


@pytest.mark.parametrize("force", ["", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"])
def test_a_file_gets_the_answer_alone_as_the_model_wrote_it(
    force: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if force:
        monkeypatch.setenv(force, "1")
    texts = ["# A\n\nlong " + "word " * 30, "[link](https://a.example)\n", "- **end**"]
    searches = [call("started", "a"), call("completed", "a"), call("started", "b")]
    failed = call("failed", "b", error={"message": "no\nreply"})
    events = [*searches, delta(texts[0]), failed, *map(delta, texts[1:]), END]
    assert in_files(events) == (
        "".join(texts) + "\n",
        "✓ web_search: query a\n✗ web_search: query b: no reply\n",
        None,
    )


def test_an_answer_that_ends_with_a_line_break_gets_no_second_one() -> None:
    assert in_files([delta("An answer.\n"), END])[0] == "An answer.\n"


def test_standard_output_and_standard_error_are_terminals_or_files_on_their_own() -> None:
    events = [call("started", "a"), call("completed", "a"), delta("**An** answer."), END]
    screen, file = Screen(), StringIO()
    assert show_run(console_on(file), console_on(screen), events) is None
    assert file.getvalue() == "**An** answer.\n"
    assert screen.text() == "✓ web_search: query a"
    screen, file = Screen(), StringIO()
    assert show_run(console_on(screen), console_on(file), events) is None
    assert file.getvalue() == "✓ web_search: query a\n"
    assert screen.text() == "An answer."


@pytest.mark.parametrize(
    ("environ", "encoding"),
    [
        pytest.param({"NO_COLOR": "1"}, "utf-8", id="no-color"),
        pytest.param({"TERM": "dumb"}, "utf-8", id="dumb"),
        pytest.param({}, "ascii", id="ascii"),
    ],
)
def test_a_terminal_that_is_not_to_be_drawn_on_gets_running_text(
    environ: dict[str, str], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "40")

    screen = Screen(40, encoding=encoding)

    def events() -> Iterator[JSONObject]:
        yield call("started", "a")
        yield delta("**Words** that go on and on ")
        assert screen.text().endswith("**Words** that go on and on")
        yield delta("beyond the bor")
        yield delta("der, and more.\n\n- item")
        yield call("completed", "a")
        yield delta(" one\n- two")
        yield END

    assert show_run(console_on(screen), console_on(screen), events()) is None
    assert screen.getvalue() == (
        "\n**Words** that go on and on beyond the \nborder, and more.\n\n- item one\n"
        "✓ web_search: query a\n- two\n"
    )


@pytest.mark.parametrize("columns", [10, 11, 12, 13, 14])
def test_running_text_breaks_its_lines_between_words(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = "five words of running text 联邦 学习 and an address: https://a.example"
    screen, out, err = consoles(columns)
    assert show_run(out, err, [*map(delta, text), END]) is None
    assert screen.getvalue().split() == text.split()
    rows = screen.text().strip("\n").split("\n")
    assert all(row == row.strip() for row in rows)
    assert max(map(cell_len, rows)) <= columns


# --- Markdown


@pytest.mark.parametrize(("columns", "expected"), [(80, AT_80_COLUMNS), (40, AT_40_COLUMNS)])
def test_the_answer_is_drawn_as_markdown_with_each_address_beside_its_text(
    columns: int, expected: str
) -> None:
    assert shown([delta(MARKDOWN), END], columns) == ("\n" + expected, None)


@settings(max_examples=10, deadline=None)
@given(sizes=st.lists(st.integers(1, 80), min_size=1), columns=st.sampled_from([40, 80]))
def test_the_screen_ends_the_same_however_the_text_comes_in(sizes: list[int], columns: int) -> None:
    screen, out, err = consoles(columns, lines=20)
    answer = DrawnAnswer(out, err)
    answer.draft.auto_refresh = False
    rest, n = MARKDOWN, 0
    while rest:
        size = sizes[n % len(sizes)]
        answer.add(rest[:size])
        answer.draft.refresh()
        rest, n = rest[size:], n + 1
    answer.end()
    assert screen.text() == {80: AT_80_COLUMNS, 40: AT_40_COLUMNS}[columns]


def test_text_is_drawn_while_its_paragraph_is_still_being_written() -> None:
    screen, out, err = consoles()

    def events() -> Iterator[JSONObject]:
        yield delta("The **first")
        screen.wait_for("The **first")
        yield delta("** words")
        screen.wait_for("The first words")
        yield END

    assert show_run(out, err, events()) is None


def test_what_has_ended_is_never_drawn_again() -> None:
    screen, out, err = consoles()

    def events() -> Iterator[JSONObject]:
        yield delta("A paragraph.\n\n- an item\n- another\n")
        screen.wait_for("another")
        drawn = len(screen.getvalue())
        yield delta("- a third\n\nThe end")
        screen.wait_for("The end")
        later = screen.getvalue()[drawn:]
        assert "paragraph" not in later
        assert "an item" not in later
        yield END

    assert show_run(out, err, events()) is None


def test_what_a_line_begins_is_known_when_the_line_is_whole() -> None:
    screen, out, err = consoles()
    answer = DrawnAnswer(out, err)
    for piece in ("A paragraph\n#", "hashtag\n-", "5 degrees\n\n1", "2 o'clock\n\n`", "code`\n"):
        answer.add(piece)
    answer.end()
    assert screen.text() == "A paragraph\n#hashtag\n-5 degrees\n\n12 o'clock\n\ncode"


def test_a_block_that_is_taller_than_the_screen_stands_in_the_scrollback_once() -> None:
    screen, out, err = consoles(lines=10)
    lines = [f"line {n}" for n in range(30)]

    def events() -> Iterator[JSONObject]:
        yield delta("Before.\n\n```\n")
        for line in lines:
            yield delta(f"{line}\n")
        screen.wait_for(lines[-1])
        yield delta("```\n\nAfter.")
        yield END

    assert show_run(out, err, events()) is None
    shown = [row.strip() for row in screen.text().split("\n") if row.strip()]
    assert shown == ["Before.", *lines, "After."]


def test_a_terminal_that_becomes_narrower_shows_nothing_twice() -> None:
    screen, out, err = consoles(80)
    narrow = Screen(40)
    words = [f"word{n}" for n in range(40)]

    def events() -> Iterator[JSONObject]:
        yield delta("Before.\n\n" + " ".join(words[:30]))
        screen.wait_for("word29")
        # Terminals wrap the rows that no longer fit.
        narrow.write("\n".join(screen.text().split("\n")))
        out.size = err.size = (40, 24)
        out.file = narrow
        yield delta(" " + " ".join(words[30:]))
        narrow.wait_for("word39")
        yield END

    assert show_run(out, err, events()) is None
    assert narrow.text().split() == ["Before.", *words]


# --- Activity and notes


def test_a_terminal_shows_what_is_being_done_and_for_how_long() -> None:
    screen, out, err = consoles(40)

    def events() -> Iterator[JSONObject]:
        screen.wait_for(" thinking 0:0")
        long = {"arguments": {"query": "What is federated AI and what is it not?"}}
        yield call("started", "a")
        yield call("started", "b", **long)
        screen.wait_for(" web_search: query a 0:0")
        screen.wait_for(" web_search: What is federated AI… 0:0")
        yield call("completed", "a")
        screen.wait_for("✓ web_search: query a\n")
        yield call("completed", "b", **long)
        screen.wait_for(" thinking 0:")
        yield delta("An answer.")
        yield END

    assert show_run(out, err, events()) is None
    assert screen.text() == (
        "✓ web_search: query a\n✓ web_search: What is federated AI and\nwhat is it not?\n"
        "\nAn answer."
    )


def test_a_call_that_ends_after_the_text_has_begun_is_not_shown_in_a_sentence() -> None:
    screen, out, err = consoles()

    def events() -> Iterator[JSONObject]:
        yield call("started", "a")
        yield delta("A sentence ")
        screen.wait_for("A sentence")
        yield call("completed", "a")
        yield delta("that goes on.\n\nAnother.\n\nThe end")
        screen.wait_for("The end")
        yield END

    assert show_run(out, err, events()) is None
    assert screen.text() == (
        "\nA sentence that goes on.\n✓ web_search: query a\n\nAnother.\n\nThe end"
    )


def test_an_answer_that_was_cut_is_marked() -> None:
    events = [delta("half a sen"), {"type": "response.incomplete"}]
    mark = "(The model cut the answer short.)\n"
    assert in_files(events) == ("half a sen\n", mark, None)
    assert shown(events) == (f"\nhalf a sen\n{mark}".rstrip(), None)


# --- Whatever comes


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"type": "error", "message": "The model\nfailed."}, "The model failed."),
        ({"type": "error", "error": {"message": "inner"}, "message": "outer"}, "inner"),
        ({"type": "response.failed", "response": {"error": {"message": "deep"}}}, "deep"),
        ({"type": "response.failed", "error": "a text", "response": None}, "a text"),
        ({"type": "response.failed"}, "it ended without a text"),
        ({"type": "response.failed", "error": {}, "response": {"error": None}}, "it ended"),
    ],
)
def test_a_failure_in_the_middle_of_a_line_ends_the_line(event: JSONObject, reason: str) -> None:
    out, err, given_reason = in_files([delta("half a sen"), event])
    assert (out, err) == ("half a sen\n", "")
    assert given_reason
    assert given_reason.startswith(reason)
    assert shown([delta("half a sen"), event]) == ("\nhalf a sen", given_reason)


def test_an_end_without_a_text_is_no_answer() -> None:
    assert in_files([delta(""), END]) == ("", "", "it ended without a text")
    assert in_files([delta("half")])[2] == ""


def test_events_that_lack_what_they_should_have_stop_nothing() -> None:
    events: list[JSONObject] = [
        {},
        {"type": None},
        {"type": "response.output_text.delta"},
        delta(None),
        delta(7),
        {"type": "response.tool_call.started"},
        {"type": "response.tool_call.completed"},
        {"type": "response.tool_call.failed", "arguments": "{", "error": None},
        call("completed", "never started", arguments=None, output=None),
        call("failed", "x", arguments=["a", 1], error="no reply"),
        delta("An answer."),
        END,
    ]
    notes = [
        "✓ a call:",
        "✗ a call: {: no reason was given",
        "✓ web_search:",
        "✗ web_search: ['a', 1]: no reply",
    ]
    assert in_files(events)[:2] == ("An answer.\n", "\n".join(notes) + "\n")
    assert shown(events)[1] is None


@pytest.mark.parametrize("screen", [StringIO, Screen])
def test_no_escape_sequence_of_a_text_reaches_the_terminal(
    screen: type[StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = screen()
    evil = "\x1b[2J\x1b]0;title\x07\x9b31m\r\x08"
    events = [
        call("started", "a", arguments={"query": evil}),
        call("failed", "a", arguments={"query": evil}, error={"message": evil}),
        delta(f"An {evil}answer"),
        END,
    ]
    assert show_run(console_on(file), console_on(file), events) is None
    assert set(file.getvalue()).isdisjoint("\x1b\x07\x9b\r\x08")


def test_a_terminal_that_cannot_show_a_character_gets_another() -> None:
    data = BytesIO()
    file = TextIOWrapper(data, encoding="ascii")
    assert show_run(console_on(file), console_on(file), [delta("5 € \ud800"), END]) is None
    assert data.getvalue() == b"5 ? ?\n"


# --- What is asked


@contextmanager
def standard_input(data: bytes) -> Iterator[None]:
    """Give standard input some bytes to its end."""
    with TemporaryFile("w+") as file, pytest.MonkeyPatch.context() as patch:
        file.buffer.write(data)
        file.seek(0)
        patch.setattr(sys, "stdin", file)
        yield


@pytest.mark.parametrize(
    ("argument", "data", "question"),
    [
        (None, b"What is it?\n", "What is it?"),
        (None, b"\n  two\nlines\n\n", "  two\nlines"),
        ("Why?", b"", "Why?"),
        ("Why?", b" \n", "Why?"),
        ("Sum up.", b"a\n\nb\n", "Sum up.\n\na\n\nb"),
        (None, b"caf\xe9", "caf\ufffd"),
        ("caf\udce9", b"", "caf\ufffd"),
    ],
)
def test_the_question_is_the_argument_with_the_text_on_standard_input(
    argument: str | None, data: bytes, question: str
) -> None:
    with standard_input(data):
        assert whole_question(argument, Console()) == question


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(b" \n", "QUESTION: is missing", id="blank"),
        pytest.param(b"a" * (MAX_PIPED_BYTES + 1), "standard input: must not be longer", id="long"),
    ],
)
def test_standard_input_that_is_no_question_is_a_usage_error(data: bytes, error: str) -> None:
    with standard_input(data), pytest.raises(typer.BadParameter) as raised:
        whole_question(None, Console())
    assert error in raised.value.format_message()


def test_a_closed_standard_input_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert whole_question("Why?", Console()) == "Why?"
    with pytest.raises(typer.BadParameter):
        whole_question(None, Console())


def test_a_standard_input_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with open(reading) as stdin, open(writing, "wb") as pipe:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(prompt, "QUIET_SECONDS", 0.01)

        class Listener(StringIO):
            def write(self, text: str) -> int:
                pipe.close()
                return super().write(text)

        err = Listener()
        assert whole_question("Why?", console_on(err)) == "Why?"
        assert err.getvalue().startswith("reading standard input to its end")


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    """Give what types at the prompts that are made meanwhile."""
    with create_pipe_input() as pipe, create_app_session(input=pipe):
        yield pipe


@pytest.mark.parametrize(
    ("pressed", "texts"),
    [
        pytest.param("one\rtwo\r", ["one", "two"], id="enter-sends"),
        pytest.param("\x1b[200~a\nb\r\nc\x1b[201~\r", ["a\nb\nc"], id="paste"),
        pytest.param("a\x1b\rb\r", ["a\nb"], id="alt-enter"),
        pytest.param("one\x03two\r", ["two"], id="ctrl-c-clears"),
        pytest.param("  \r", [""], id="blank"),
        pytest.param("\x03", [None], id="ctrl-c-leaves"),
        pytest.param("\x04", [None], id="ctrl-d-leaves"),
        pytest.param("caf\udce9\r", ["caf\ufffd"], id="not-utf-8"),
    ],
)
def test_the_keys_of_the_prompt_do_what_help_says(
    pressed: str, texts: list[str | None], keys: PipeInput
) -> None:
    keys.send_bytes(pressed.encode(errors="surrogateescape"))
    with prompt_session() as session:
        assert [typed(session) for _ in texts] == texts


@pytest.mark.parametrize("text", ["/foo", "/", "/new what?", "/etc is what?", "/no\nwhat?"])
def test_a_slash_and_a_word_are_a_command(text: str) -> None:
    assert is_command(text)


@pytest.mark.parametrize("text", ["What is /new?", "/usr/bin is what?", "// a comment", "/* c */"])
def test_other_texts_are_questions(text: str) -> None:
    assert not is_command(text)


# --- The command, with runs that need no SuperLink

COMMAND = ("-m", "tests.without_superlink")


def test_a_reader_that_has_seen_enough_ends_the_command_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, *COMMAND, "long"],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout
        assert command.stderr
        assert command.stdout.readline() == "line 0\n"
        command.stdout.close()
        assert command.stderr.read().count("\n") == 1
    assert command.returncode == 128 + signal.SIGHUP


@pytest.mark.parametrize(
    ("question", "status", "answer", "reason"),
    [
        ("what", 0, "About what.\n", ""),
        ("fail", 1, "About fail\n", "No answer: no such model\n"),
        ("gone", 1, "About gone\n", "The SuperLink failed: gone.\n"),
    ],
)
def test_only_an_answer_exits_with_0(question: str, status: int, answer: str, reason: str) -> None:
    done = subprocess.run(
        [sys.executable, *COMMAND],
        cwd=CHECKOUT,
        input=question,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert done.stdout == answer
    assert re.fullmatch(f"model: .*\n{reason}", done.stderr)


@contextmanager
def in_a_terminal(**options: Any) -> Iterator[Command]:
    """Give the command at its prompt."""
    command = Command(*COMMAND, **options)
    try:
        command.wait_for_prompt()
        yield command
    finally:
        command.process.close(force=True)


def test_a_conversation_shows_its_answers_under_its_questions() -> None:
    with in_a_terminal() as terminal:
        terminal.type("\x1b[200~one\ntwo\x1b[201~\r")
        terminal.wait_for("About one\ntwo.")
        terminal.wait_for_prompt()
        terminal.type("\x1b[A and three\r")
        terminal.wait_for("About one\ntwo and three.")
        terminal.wait_for_prompt()
        terminal.type("/help\r")
        terminal.wait_for(HELP)
        terminal.wait_for_prompt()
        terminal.type("/foo\r")
        terminal.wait_for("There is no")
        terminal.wait_for_prompt()
        terminal.type("/exit\r")
        assert terminal.status() == 0
    assert terminal.screen.text().partition("\n")[2] == (
        "\n> one\n  two\n\nAbout one\ntwo.\n"
        "\n> one\n  two and three\n\nAbout one\ntwo and three.\n"
        f"\n> /help\n{HELP}\n"
        "\n> /foo\nThere is no command /foo: /help shows those that there are.\n"
        "\n> /exit"
    )


def test_a_dumb_terminal_is_asked_and_answered_in_plain_text() -> None:
    with in_a_terminal(TERM="dumb") as terminal:
        terminal.type("what\r")
        terminal.wait_for("About what.")
        terminal.wait_for_prompt()
        terminal.type(CTRL_D)
        assert terminal.status() == 0
    assert b"\x1b" not in terminal.written


def test_a_superlink_that_is_gone_ends_the_conversation() -> None:
    with in_a_terminal() as terminal:
        terminal.type("gone\r")
        assert terminal.status() == 1
    assert "> gone\n\nAbout gone\nThe SuperLink failed: gone." in terminal.screen.text()


def test_what_is_typed_during_an_answer_waits_for_its_end() -> None:
    with in_a_terminal() as terminal:
        terminal.type("slow\r")
        terminal.wait_for("About slow")
        terminal.type("next\r")
        terminal.wait_for("About next.")
        terminal.wait_for_prompt()
    assert terminal.screen.text().endswith("> slow\n\nAbout slow.\n\n> next\n\nAbout next.\n\n>")


@pytest.mark.parametrize("question", ["", "slow"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_conversation_and_leaves_the_terminal_as_it_was(
    question: str, how: signal.Signals
) -> None:
    with in_a_terminal() as terminal:
        if question:
            terminal.type(f"{question}\r")
            terminal.wait_for(f"About {question}")
        terminal.process.kill(how)
        assert terminal.status() == 128 + how
        assert terminal.process.getecho()
