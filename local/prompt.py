"""What a person asks: on standard input, or at the prompt of a conversation."""

import re
import select
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.output.plain_text import PlainTextOutput
from prompt_toolkit.utils import is_dumb_terminal
from rich.console import Console

MAX_PIPED_BYTES = 1_000_000
QUIET_SECONDS = 1.0

HELP = """\
/new           starts over
/help          shows this
/quit, /exit   leave, as Ctrl-D does
Enter          sends
Alt-Enter      begins a new line
Pasted lines   are one question
Up, Down       bring back what was typed
Ctrl-C         stops an answer, clears
               the line, or else leaves"""


def whole_question(argument: str | None, err: Console) -> str | None:
    """Return QUESTION with the text on standard input below it, None where neither is there.

    Raises ``typer.BadParameter`` where nobody can be asked for a question.
    """
    if sys.stdin and sys.stdin.isatty():
        return argument and well_formed(argument)
    text = piped_text(err) if sys.stdin else ""
    parts = [part for part in (argument, text) if part and part.strip()]
    if not parts:
        raise typer.BadParameter("is missing, and standard input is empty", param_hint="QUESTION")
    return well_formed("\n\n".join(parts))


def piped_text(err: Console) -> str:
    """Return the text on standard input to its end."""
    if not select.select([sys.stdin], [], [], QUIET_SECONDS)[0]:
        err.print("reading standard input to its end; </dev/null gives it none", style="dim")
    data = sys.stdin.buffer.read(MAX_PIPED_BYTES + 1)
    if len(data) > MAX_PIPED_BYTES:
        reason = f"must not be longer than {MAX_PIPED_BYTES:,} bytes"
        raise typer.BadParameter(reason, param_hint="standard input")
    return data.decode(errors="replace").strip("\n")


@contextmanager
def prompt_session() -> Iterator[PromptSession[str]]:
    """Give a prompt that remembers what was typed; it leaves standard output to the answers."""
    keys = KeyBindings()

    @keys.add("enter", filter=has_focus(DEFAULT_BUFFER))
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=has_focus(DEFAULT_BUFFER))
    def begin_a_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    only_stdout = sys.stdout.isatty() and not sys.stderr.isatty()
    stream = sys.stdout if only_stdout else sys.stderr
    output = PlainTextOutput(stream) if is_dumb_terminal() else create_output(stream)
    # A prompt with an output of its own would draw on a dumb terminal too.
    with create_app_session(output=output):
        yield PromptSession("\n> ", multiline=True, key_bindings=keys, enable_suspend=True)


def typed(session: PromptSession[str]) -> str | None:
    """Return what is typed next, stripped, or None where one leaves."""
    while True:
        try:
            return well_formed(session.prompt()).strip()
        except EOFError:
            return None
        except KeyboardInterrupt:
            if not session.default_buffer.text:
                return None


@contextmanager
def unechoed() -> Iterator[None]:
    """Keep what is typed ahead out of what is drawn; the next prompt reads it."""
    if not (sys.stdin and sys.stdin.isatty()):
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def well_formed(text: str) -> str:
    """Return a text with a mark in place of each byte that wasn't UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def is_command(text: str) -> bool:
    """Return whether a text begins with a slash and a word; a path has more than that."""
    return re.match(r"/[\w-]*(\s|$)", text) is not None
