"""What a person sees of a run: its searches and fetches as they go, its answer as it streams."""

import re
import time
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from local.answer import answer_on
from local.screen import LastLines
from local.services import JSONObject

# A page's or a model's escape sequences are not for the reader's terminal.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Activity(LastLines):
    """What is being done on a terminal, each thing with the time that it has taken."""

    def __init__(self, console: Console, otherwise: str) -> None:
        self.doing: dict[str, tuple[str, float]] = {}
        self.otherwise = (otherwise, time.monotonic())
        super().__init__(console, self.rows)

    def rows(self) -> Text:
        """Return a line for each thing that is being done, or for the one that always is."""
        return Text("\n").join(
            self.row(line, time.monotonic() - begun)
            for line, begun in list(self.doing.values()) or [self.otherwise]
        )

    def row(self, line: str, seconds: float) -> Text:
        """Return a line that fits into the terminal."""
        shown = Text(f"{SPINNER[int(seconds * 10) % len(SPINNER)]} {line}")
        took = f" {seconds // 60:.0f}:{seconds % 60 // 1:02.0f}"
        shown.truncate(max(0, self.console.width - len(took)), overflow="ellipsis")
        return shown.append(took, "dim")


def show_run(out: Console, err: Console, events: Iterable[JSONObject]) -> str | None:
    """Show a run's events up to its end; return None after an answer, else why there is none.

    The answer goes to `out`, all else to `err`. The reason is blank where the events end without
    one.
    """
    with Activity(err, "thinking") as moving, answer_on(out, err) as answer:
        for event in events:
            kind = str(event.get("type")).removeprefix("response.")
            call_id = str(event.get("tool_call_id"))
            if kind == "tool_call.started":
                moving.doing[call_id] = (call_line(event), time.monotonic())
            elif kind in ("tool_call.completed", "tool_call.failed"):
                moving.doing.pop(call_id, None)
                show = answer.note if answer.begun else moving.print
                show(call_result(event))
            elif kind == "output_text.delta" and (text := delta_text(event)):
                if not answer.begun:
                    moving.stop()
                    if out.is_terminal and err.is_terminal:
                        err.print()
                answer.add(text)
            elif kind in ("completed", "incomplete") and answer.begun:
                if kind == "incomplete":
                    answer.note("(The model cut the answer short.)")
                return None
            elif kind in ("completed", "incomplete", "error", "failed"):
                return failure(event) or "it ended without a text"
    return ""


def delta_text(event: JSONObject) -> str:
    """Return the text of an event that the terminal may show."""
    delta = event.get("delta")
    return CONTROL.sub("", delta) if isinstance(delta, str) else ""


def call_result(event: JSONObject) -> str:
    """Return a line for a call that has ended, with a mark for done or failed."""
    if event["type"].endswith("completed"):
        return f"✓ {call_line(event)}"
    return f"✗ {call_line(event)}: {failure(event) or 'no reason was given'}"


def call_line(event: JSONObject) -> str:
    """Return the tool of a call, and its query or address."""
    arguments = event.get("arguments")
    subjects = arguments.values() if isinstance(arguments, dict) else [arguments or ""]
    return one_line(f"{event.get('connector_ref') or 'a call'}: {' '.join(map(str, subjects))}")


def failure(event: JSONObject) -> str:
    """Return the reason that an event gives for a failure, blank where it gives none."""
    response = event.get("response")
    error = event.get("error") or (response.get("error") if isinstance(response, dict) else None)
    message = error.get("message") if isinstance(error, dict) else error
    return one_line(str(message or event.get("message") or ""))


def one_line(text: str) -> str:
    """Return a text as one line of plain characters."""
    return CONTROL.sub("", " ".join(text.split()))
