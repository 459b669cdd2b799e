"""How long runs take and what a long run series costs: `uv run python -m tests.benchmark`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from string import ascii_lowercase
from typing import Annotated

import grpc
import typer
from flwr.proto.control_pb2 import StreamRunEventsRequest

from local.services import JSONObject, Reply, function_call, response, services, text_events
from local.stand_ins import stand_in_fetch, stand_in_model, stand_in_search
from local.superlink import CHECKOUT, COMMANDS, SuperLink, run_events, start_run, superlink
from research_agent.agent_app import (
    MAX_EVIDENCE_CHARS,
    MAX_OPEN_CALLS,
    MAX_OUTPUT_CHARS,
    conversation_messages,
    stored_items,
)
from research_agent.items import call_output
from research_agent.note import answer_note
from research_agent.pages import readable_output
from tests.scripted import make_context, message

CALL_SECONDS = 2.0
WORDS, WORDS_PER_SECOND = 300, 50
# Planning, the searches, planning, the fetches, the answer.
STEPS = 5
GROUP = 16

CALLS_OF_A_CHAT = 3
# A chat without an answer by then counts as lost.
CHAT_SECONDS = 400
PAGE_BYTES = 2**20

AS_BUILT = f"MAX_OPEN_CALLS = {MAX_OPEN_CALLS}"
ONE_AT_A_TIME = "MAX_OPEN_CALLS = 1"


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often to measure.")] = 3,
    calls: Annotated[int, typer.Option(min=1, max=8, help="How many calls a turn has.")] = 4,
    chats: Annotated[
        int, typer.Option(min=0, help="How many chats start at once; 0: nothing on cold tasks.")
    ] = 6,
) -> None:
    """Compare runs as built with runs that make one call at a time; then read long texts."""
    print(f"{os.cpu_count()} cores, {rounds} rounds, {calls} calls a turn, medians in seconds\n")
    if chats:
        measure_warmth(rounds)
        measure_chats(chats)
    measure_runs(rounds, Services(calls))
    measure_conversation(rounds)
    measure_passages(rounds)
    measure_note(rounds)


# --- Warm tasks

# What `python -m local` does, with the SuperExec that `commands` stands for.
ONE_QUESTION = """
from functools import partial
from local import __main__ as local
from local.superlink import COMMANDS, superlink
local.superlink = partial(superlink, commands={commands})
local.main("What is federated AI?")
"""


def measure_warmth(rounds: int) -> None:
    """Print what forked tasks make of the time that Flower's own SuperExec takes."""
    seconds: dict[str, JSONObject] = {
        "the whole command": {"COMMANDS": [], "None": []},
        "first text of a run": {"COMMANDS": [], "None": []},
    }
    whole, first = seconds.values()
    for _ in range(rounds):
        for commands, folder in (("COMMANDS", COMMANDS), ("None", None)):
            whole[commands].append(command_seconds(ONE_QUESTION.format(commands=commands)))
            first[commands].append(first_text_seconds(folder))
    print(f"{'':24}Flower's own SuperExec  warm tasks  ratio")
    for name, taken in seconds.items():
        cold, warm = median(taken["COMMANDS"]), median(taken["None"])
        print(f"{name:24}{cold:22.1f}{warm:12.1f}{warm / cold:7.2f}")
    print()


def command_seconds(script: str) -> float:
    """Return the seconds that a Python script takes."""
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", script],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - started


def first_text_seconds(commands: Path | None) -> float:
    """Return the seconds from the start of the stand-ins' run to its first text."""
    with (
        services(stand_in_model, stand_in_search, stand_in_fetch) as environment,
        superlink(environment, commands) as link,
    ):
        started = time.monotonic()
        run = start_run(link, {"agent.input": "What is federated AI?"})
        for event in run_events(link, run):
            if event["type"] == "response.output_text.delta":
                return time.monotonic() - started
    raise RuntimeError("The run gave no text.")


# --- Runs


class Services:
    """A model that asks for searches, then fetches, then writes at a steady pace; slow services."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.sixteenth_piece_at = 0.0

    def model(self, request: JSONObject) -> Reply:
        """Ask for the calls of the next turn, or write the answer."""
        if request["stream"]:
            return text_events(self.words())
        turn = sum(item["type"] == "function_call" for item in request["input"]) // self.calls
        tool, argument = (("web_search", "query"), ("web_fetch", "url"))[turn]
        return response(
            *(
                function_call(tool, f"{tool}_{n}", **{argument: f"https://page.example/{n}"})
                for n in range(self.calls)
            )
        )

    def words(self) -> Iterator[str]:
        """Write the answer, and note when its sixteenth piece leaves."""
        for n in range(WORDS):
            time.sleep(1 / WORDS_PER_SECOND)
            if n == GROUP - 1:
                self.sixteenth_piece_at = time.monotonic()
            yield f"word{n} "

    def tool(self, _request: JSONObject) -> Reply:
        """Take a while and give a page."""
        time.sleep(CALL_SECONDS)
        return {"results": [], "content": "A page."}


def measure_runs(rounds: int, slow: Services) -> None:
    """Print the medians of both ways to run, their ratios and the floor."""
    measured: dict[str, list[JSONObject]] = {AS_BUILT: [], ONE_AT_A_TIME: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        services(slow.model, slow.tool, slow.tool) as environment,
        superlink(environment) as link,
    ):
        for _ in range(rounds):
            for way in (ONE_AT_A_TIME, AS_BUILT):
                measured[way].append(measure_run(link, app_copy(Path(folder), way), slow))
    built, single = (
        {key: median(run[key] for run in measured[way]) for key in measured[way][0]}
        for way in (AS_BUILT, ONE_AT_A_TIME)
    )
    # Where one call runs at a time, a call takes its service's time and one child task's cost.
    task = single["call"] - CALL_SECONDS
    floor_text = STEPS * task + 2 * CALL_SECONDS + GROUP / WORDS_PER_SECOND
    floor_end = floor_text + (WORDS - GROUP) / WORDS_PER_SECOND
    print(f"{'':24}one at a time  as built  ratio  floor")
    for name, key, floor in (
        ("first text at a client", "text", floor_text),
        ("end of the run", "end", floor_end),
    ):
        ratio = built[key] / single[key]
        print(f"{name:24}{single[key]:13.1f}{built[key]:10.1f}{ratio:7.2f}{floor:7.1f}")
    print(f"first text after the provider's sixteenth piece: {built['lag']:.2f}")
    print(f"one child task: {task:.1f}\n")


def app_copy(folder: Path, way: str) -> Path:
    """Return a copy of the app whose calls run in this way."""
    copy = folder / way.replace(" ", "")
    if not copy.exists():
        shutil.copytree(CHECKOUT / "research_agent", copy / "research_agent")
        shutil.copy(CHECKOUT / "pyproject.toml", copy)
        module = copy / "research_agent" / "agent_app.py"
        source = module.read_text()
        if source.count(AS_BUILT) != 1:
            raise RuntimeError(f"{module} must hold {AS_BUILT!r} once.")
        module.write_text(source.replace(AS_BUILT, way))
    return copy


def measure_run(link: SuperLink, app: Path, slow: Services) -> JSONObject:
    """Return a run's seconds to its first text, after the sixteenth piece, to its end, a call."""
    started = time.monotonic()
    run = start_run(link, {"agent.input": "Go", "agent.max-tool-turns": 2}, app=app)
    first_text, calls_started, calls = 0.0, {}, []
    for event in run_events(link, run):
        now = time.monotonic()
        if event["type"] == "response.tool_call.started":
            calls_started[event["tool_call_id"]] = now
        elif event["type"] == "response.tool_call.completed":
            calls.append(now - calls_started[event["tool_call_id"]])
        elif event["type"] == "response.output_text.delta" and not first_text:
            first_text = now
    return {
        "text": first_text - started,
        "lag": first_text - slow.sixteenth_piece_at,
        "end": time.monotonic() - started,
        "call": median(calls),
    }


# --- Chats at once


def measure_chats(chats: int) -> None:
    """Print how many of the chats that start at once are answered, and when the last is.

    They run on the SuperExec that Flower brings along, as on a SuperLink of somebody else.
    """
    slow = Services(CALLS_OF_A_CHAT)
    print(f"{chats} chats at once, two turns of {CALLS_OF_A_CHAT} calls each")
    for name, way in (("one call at a time", ONE_AT_A_TIME), ("as built", AS_BUILT)):
        with (
            tempfile.TemporaryDirectory() as folder,
            services(slow.model, slow.tool, slow.tool) as environment,
            superlink(environment, COMMANDS) as link,
        ):
            app = app_copy(Path(folder), way)
            started = time.monotonic()
            with ThreadPoolExecutor(chats) as clients:
                ended = list(clients.map(partial(answered_at, link), [app] * chats))
        seconds = [end - started for end in ended if end]
        print(f"{name:24}{len(seconds)} answered, the last after {max(seconds, default=0):.0f} s")
    print()


def answered_at(link: SuperLink, app: Path) -> float | None:
    """Return when a chat's answer has ended, None where it gets none."""
    run = start_run(link, {"agent.input": "Go", "agent.max-tool-turns": 2}, app=app)
    request = StreamRunEventsRequest(run_id=run.run_id)
    with suppress(grpc.RpcError):
        for event in link.control.StreamRunEvents(request, timeout=CHAT_SECONDS):
            if event.task_event.event == "response.completed":
                return time.monotonic()
    return None


# --- Conversation


def measure_conversation(rounds: int) -> None:
    """Print what `conversation_messages` takes over a series of 2,000 messages and 100 MB."""
    page = json.dumps({"content": "word " * 10_000})
    output = {"type": "function_call_output", "call_id": "c", "output": page}
    items = []
    for n in range(2_000):
        items += [message(("user", "assistant")[n % 2], f"message {n}"), output]
    context = make_context(items)
    stored = stored_items(context)
    size = sum(map(len, stored)) / 1e6

    seconds = timed(lambda: conversation_messages(context), rounds)
    everything = timed(lambda: [json.loads(item) for item in stored], rounds)
    tracemalloc.start()
    messages = conversation_messages(context)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    print(f"conversation_messages: {len(messages)} messages out of {size:.0f} MB")
    print(f"{seconds:.3f} s, {seconds / everything:.2f} of parsing every item; peak {peak:.1f} MB")


# --- Passages


def measure_passages(rounds: int) -> None:
    """Print what a page of 1 MiB takes, of the slowest kinds, and eight of the slowest at once."""
    chance = Random(0)
    different = "".join(chance.choices(ascii_lowercase + "     ", k=PAGE_BYTES))
    han, hangul, arabic = (
        "".join(map(chr, chance.choices(range(*script), k=PAGE_BYTES)))
        for script in ((0x4E00, 0xA000), (0xAC00, 0xD7A4), (0x0620, 0x064B))
    )
    pages = {
        "a million times the same": ("word " * PAGE_BYTES)[:PAGE_BYTES],
        "different words": different,
        "one line without spaces": different.replace(" ", "x"),
        "Chinese": han,
        "Korean": hangul,
        "Arabic": arabic,
    }
    # `web_fetch` bounds the bytes of a page.
    pages = {
        name: page.encode()[:PAGE_BYTES].decode(errors="ignore") for name, page in pages.items()
    }
    asked = "\n".join(
        ["What is the population of Zürich?", *[f"https://a.example/{different}"] * 8]
    )
    work = {
        name: partial(readable_output, {"content": page}, asked, MAX_OUTPUT_CHARS)
        for name, page in pages.items()
    }
    print("\nreadable_output of 1 MiB")
    seconds = {name: timed(take, rounds) for name, take in work.items()}
    for name, take in work.items():
        tracemalloc.start()
        take()
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        print(f"{name:24}{seconds[name]:6.3f} s, peak {peak:.1f} MB")
    slowest = work[max(seconds, key=seconds.__getitem__)]
    started = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: slowest(), range(8)))
    print(f"eight of the slowest at once: {time.monotonic() - started:.2f} s")


# --- Note


def measure_note(rounds: int) -> None:
    """Print what the note of an answer with 40 links takes, by what fills the evidence."""
    answer = " ".join(f"[a](https://page{n}.example/unknown)" for n in range(40))
    fillings = {
        "prose": "word " * MAX_EVIDENCE_CHARS,
        "links": "".join(f"https://page{n % 40}.example/{n}\n" for n in range(MAX_EVIDENCE_CHARS)),
        "short links": "//A.b " * MAX_EVIDENCE_CHARS,
        "one endless link": "https://page1.example/" + "a" * MAX_EVIDENCE_CHARS,
        "brackets": "[(" * MAX_EVIDENCE_CHARS,
        "escapes": r"\u4e2d%41&amp;" * MAX_EVIDENCE_CHARS,
    }
    starts = range(0, MAX_EVIDENCE_CHARS, MAX_OUTPUT_CHARS)
    print(f"\nanswer_note: 40 links, {MAX_EVIDENCE_CHARS:,} characters of evidence")
    for name, filling in fillings.items():
        outputs = (filling[start : start + MAX_OUTPUT_CHARS] for start in starts)
        evidence = [call_output({"call_id": "c"}, output) for output in outputs]
        seconds = timed(partial(answer_note, answer, [], evidence, []), rounds)
        print(f"{name:24}{seconds:.3f} s")


def timed(work: Callable[[], object], rounds: int) -> float:
    """Return the seconds of the quickest round."""
    taken = []
    for _ in range(rounds):
        started = time.monotonic()
        work()
        taken.append(time.monotonic() - started)
    return min(taken)


if __name__ == "__main__":
    typer.run(main)
