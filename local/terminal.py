"""What a person sees of a run: its searches and fetches as they go, its answer as it streams."""

import re
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from local.services import JSONObject

# A page's or a model's escape sequences are not for the reader's terminal.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain_console(**options: Any) -> Console:
    """Return a console that shows texts as they are: no markup, no line breaks of its own."""
    return Console(soft_wrap=True, markup=False, emoji=False, highlight=False, **options)


def show_run(console: Console, events: Iterator[JSONObject]) -> str | None:
    """Show a run's events up to its end; return None after an answer, else why there is none.

    The reason is blank where the events end without one.
    """
    with activity(console) as moving:
        thinking = moving.add_task("thinking")
        calls: dict[str, TaskID] = {}
        for event in events:
            kind = str(event.get("type")).removeprefix("response.")
            if kind == "tool_call.started":
                calls[event["tool_call_id"]] = moving.add_task(call_line(event))
            elif kind in ("tool_call.completed", "tool_call.failed"):
                moving.remove_task(calls.pop(event["tool_call_id"]))
                show_call(console, event)
            elif kind == "output_text.delta":
                moving.stop()
                console.out(CONTROL.sub("", event["delta"]), end="")
            elif kind in ("completed", "incomplete"):
                console.out("" if kind == "completed" else "\n(The model cut the answer short.)")
                return None
            elif kind in ("error", "failed"):
                return one_line(str(event.get("message")))
            moving.update(thinking, visible=not calls)
    return ""


def activity(console: Console) -> Progress:
    """Return the moving lines with their seconds, which only a terminal shows."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def show_call(console: Console, event: JSONObject) -> None:
    """Show a call that has ended, with a mark for done or failed."""
    if event["type"].endswith("completed"):
        console.print(f"✓ {call_line(event)}")
    else:
        reason = event.get("error", {}).get("message", "no reason was given")
        console.print(f"✗ {call_line(event)}: {one_line(reason)}")


def call_line(event: JSONObject) -> str:
    """Return the tool of a call, and its query or address."""
    subject = " ".join(str(value) for value in event["arguments"].values())
    return one_line(f"{event['connector_ref']}: {subject}")


def one_line(text: str) -> str:
    """Return a text as one line of plain characters."""
    return CONTROL.sub("", " ".join(text.split()))
