"""What users and chat clients see of runs on a real SuperLink."""

import itertools
import json
import os
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path

import psutil
from flwr.cli.build import build_fab_from_disk

from local.services import (
    JSONObject,
    Reply,
    assistant_message,
    function_call,
    response,
    text_events,
)
from local.superlink import CHECKOUT, COMMANDS, bundle, run_events
from research_agent.note import NOTE_OPENING
from tests.conftest import LONG_PAGE_FACT, Bench
from tests.processes import still_living
from tests.scripted import QUESTION, message, without_note

SEARCH = function_call("web_search", "search", query="federated AI")
PAGE = "https://federated.example/what-is-federated-ai"
DRAFT = assistant_message("A private draft.")
OVERLOADED = (503, {"error": {"message": "overloaded"}})
NO_SUCH_MODEL = (404, {"error": {"message": "no such model"}})


def pieces(*texts: str) -> Iterator[JSONObject]:
    """Return the events of an answer in these pieces."""
    return text_events(texts)


def without_research() -> dict[str, int]:
    """Return the configuration of a run that goes straight to the answer."""
    return {"agent.max-tool-turns": 0}


def test_flwr_run_prints_the_answer(bench: Bench, tmp_path: Path) -> None:
    bench.script("cli", pieces("Federated ", "AI ", "trains at home."))
    connection = f'[superlink.here]\naddress = "{bench.link.address}"\ninsecure = true\n'
    (tmp_path / "config.toml").write_text(connection)
    overrides = 'agent.input="What?" agent.model="cli" agent.max-tool-turns=0'
    done = subprocess.run(
        [COMMANDS / "flwr", "run", ".", "here", "--stream", "--run-config", overrides],
        cwd=CHECKOUT,
        env=os.environ
        | {
            "FLWR_HOME": str(tmp_path),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Federated AI trains at home.\n" in done.stdout
    assert bench.requests["cli"][0]["input"] == [message("user", "What?")]


def test_text_reaches_a_client_while_the_model_still_writes(bench: Bench) -> None:
    client_has_text = threading.Event()
    in_time: list[bool] = []

    def words() -> Iterator[str]:
        yield from (f"{n} " for n in range(20))
        in_time.append(client_has_text.wait(30))
        yield "end"

    turn = response({"type": "reasoning", "id": "r", "summary": []}, DRAFT, SEARCH)
    run = bench.start("streams", turn, response(DRAFT), text_events(words()))
    events = []
    for event in run_events(bench.link, run):
        events.append(event)
        if event["type"] == "response.output_text.delta":
            client_has_text.set()
    seen = bench.finish("streams", run)

    assert in_time == [True]
    assert seen.events == events
    assert seen.status == "finished:completed"
    assert seen.answers() == [seen.text()]
    assert seen.text().endswith("18 19 end")
    assert f"{seen.text()}\n" in seen.log
    assert seen.ends() == ["response.completed"]
    assert seen.events[-1]["type"] == "response.completed"
    assert "web_search: federated AI\n" in seen.log
    assert "draft" not in json.dumps([seen.events, seen.log, seen.items])


def test_an_answer_of_3000_pieces_sent_at_once_arrives_whole(bench: Bench) -> None:
    words = [f"{n} " for n in range(3000)]
    seen = bench.run("many", pieces(*words), **without_research())
    assert seen.text() == "".join(words)
    assert seen.answers() == [seen.text()]
    assert seen.events[-1]["type"] == "response.completed"


def test_a_connector_that_fails_is_evidence_for_the_answer(bench: Bench) -> None:
    fetches = [
        function_call("web_fetch", "down", url="https://down.example/page?key=SECRET"),
        function_call("web_fetch", "up", url=PAGE),
        {**function_call("web_search", "cut"), "arguments": '{"query": "San'},
        function_call("start_automation", "sly", input="obey", start_at="now"),
    ]
    seen = bench.run("fails", response(*fetches), pieces("Answer."), **{"agent.max-tool-turns": 1})
    assert seen.answers() == ["Answer."]
    outputs = bench.requests["fails"][-1]["input"][-4:]
    down, up, cut, sly = (json.loads(item["output"]) for item in outputs)
    assert "down for maintenance" in down["error"]
    assert up["content"].startswith("Federated AI trains")
    assert "JSON object" in cut["error"]
    assert "web_search, web_fetch" in sly["error"]
    assert "web_fetch: https://down.example/page?... failed: " in seen.log
    assert {e["connector_ref"] for e in seen.events if "connector_ref" in e} == {"web_fetch"}


def test_a_follow_up_replays_the_messages_and_no_tool_item(bench: Bench) -> None:
    turn = response(SEARCH)
    first = bench.run("first", turn, pieces("First answer."), **{"agent.max-tool-turns": 1})
    second = bench.run(
        "second",
        pieces("Second answer."),
        series_id=first.run.series_id,
        **without_research(),
        **{"agent.input": "And then?"},
    )
    assert bench.requests["second"][0]["input"] == [
        message("user", QUESTION),
        message("assistant", "First answer."),
        message("user", "And then?"),
    ]
    assert second.answers() == ["First answer.", "Second answer."]


def test_the_fab_holds_the_project_file_and_the_package_alone() -> None:
    built = build_fab_from_disk(CHECKOUT)
    assert bundle(CHECKOUT) == built
    with zipfile.ZipFile(BytesIO(built)) as fab:
        files = {name for name in fab.namelist() if not name.startswith(".info/")}
    rooms = {f"research_agent/{path.name}" for path in (CHECKOUT / "research_agent").glob("*.py")}
    assert files == {"pyproject.toml", *rooms}


# --- When something fails


def test_a_provider_that_is_down_fails_the_run_for_everybody_to_see(bench: Bench) -> None:
    seen = bench.run("404", *[NO_SUCH_MODEL] * 4, **{"agent.max-tool-turns": 1})
    assert seen.status == "finished:failed"
    assert "The answer request failed" in seen.details
    assert "no such model" in seen.details
    assert seen.details.removeprefix("AgentApp failed with exception: ") in seen.log
    assert seen.ends() == ["error"]
    assert seen.events[-1]["message"] in seen.details
    assert seen.answers() == []

    again = bench.run(
        "404 and then not",
        pieces("Now it works."),
        series_id=seen.run.series_id,
        **without_research(),
        **{"agent.input": "Again?"},
    )
    assert bench.requests["404 and then not"][0]["input"] == [
        message("user", QUESTION),
        message("user", "Again?"),
    ]
    assert again.answers() == ["Now it works."]


def test_one_failure_before_each_reply_does_not_lose_the_answer(bench: Bench) -> None:
    seen = bench.run("503", OVERLOADED, response(), OVERLOADED, pieces("Answer."))
    assert seen.answers() == [seen.text()] == ["Answer."]
    assert seen.ends() == ["response.completed"]
    assert seen.log.count("It is tried once more.") == 2


def test_planning_that_is_down_for_good_leaves_the_evidence_of_the_first_turn(
    bench: Bench,
) -> None:
    turn = response(function_call("web_fetch", "page", url=PAGE))
    seen = bench.run("down", turn, OVERLOADED, OVERLOADED, pieces("Answer."))
    assert seen.answers() == [seen.text()]
    assert without_note(seen.text()) == "Answer."
    assert "Federated AI trains" in bench.requests["down"][-1]["input"][-1]["output"]
    assert "The research ended early." in seen.log


def test_a_stream_that_ends_in_the_middle_fails_the_run(bench: Bench) -> None:
    torso = list(pieces("A tor", "so"))[:2]
    seen = bench.run("torso", torso, **without_research())
    assert seen.status == "finished:failed"
    assert "stream ended before a terminal event" in seen.details
    assert seen.text() == "A tor"
    assert seen.ends() == ["error"]
    assert seen.answers() == []


def test_an_incomplete_answer_is_kept(bench: Bench) -> None:
    cut = {"incomplete_details": {"reason": "max_output_tokens"}}
    end = {"type": "response.incomplete", "response": response(status="incomplete") | cut}
    seen = bench.run("incomplete", [*list(pieces("Half."))[:-1], end], **without_research())
    assert seen.status == "finished:completed"
    assert seen.answers() == [seen.text()]
    assert without_note(seen.text()) == "Half."
    assert seen.ends() == ["response.incomplete"]
    assert "The model cut the answer short." in seen.log


def test_a_refusal_is_drawn_and_stored(bench: Bench) -> None:
    refusal = [
        {"type": "response.refusal.delta", "delta": "I can't."},
        {"type": "response.completed", "response": response()},
    ]
    seen = bench.run("refusal", refusal, **without_research())
    assert seen.answers() == [seen.text()] == ["I can't."]
    assert seen.events[-1]["type"] == "response.completed"


def test_streamed_text_counts_when_the_last_event_has_no_output(bench: Bench) -> None:
    end = {"type": "response.completed", "response": response()}
    seen = bench.run("bare", [*list(pieces("Text."))[:-1], end], **without_research())
    assert seen.answers() == [seen.text()] == ["Text."]


def test_a_call_that_never_returns_holds_back_neither_answer_nor_end(bench: Bench) -> None:
    hangs = function_call("web_fetch", "hangs", url="https://hangs.example")
    superexec = psutil.Process(bench.link.superexec)
    before = superexec.children()
    run = bench.start(
        "hangs", response(hangs), pieces("Answer."), **{"agent.max-research-seconds": 10}
    )
    assert bench.fetch_hangs.wait(60)
    started = [task for task in superexec.children() if task not in before]
    connector = max(started, key=psutil.Process.create_time)
    connector.kill()
    seen = bench.finish("hangs", run)
    _, left = psutil.wait_procs(started, timeout=10)
    assert still_living(left) == []
    assert without_note(seen.text()) == "Answer."
    assert seen.events[-1]["type"] == "response.completed"
    assert "no reply within the time" in bench.requests["hangs"][-1]["input"][-1]["output"]


# --- What real providers do


def planning_first(
    turn: list[JSONObject], refuses: Callable[[JSONObject], tuple[int, str] | None]
) -> Callable[[JSONObject], Reply]:
    """Return a model that makes one turn of calls and then answers, unless it refuses a request."""

    def model(request: JSONObject) -> Reply:
        if refused := refuses(request):
            return refused[0], {"error": {"message": refused[1]}}
        if request["stream"]:
            return pieces("Answer.")
        has_evidence = any("output" in item for item in request["input"])
        return response(*([] if has_evidence else turn))

    return model


def test_a_small_window_gets_what_fits_of_a_long_page(bench: Bench) -> None:
    def too_long(request: JSONObject) -> tuple[int, str] | None:
        return (400, "exceeds 4096 tokens") if len(json.dumps(request)) > 4 * 4096 else None

    fetch = function_call("web_fetch", "long", url="https://long.example/page")
    seen = bench.run("window", planning_first([fetch], too_long))
    assert without_note(seen.text()) == "Answer."
    assert seen.answers() == [seen.text()]
    output = json.loads(bench.requests["window"][-1]["input"][-1]["output"])
    assert 3_000 < len(output["content"]) <= 4_000
    assert LONG_PAGE_FACT in output["content"]
    assert "The evidence was cut" in seen.log
    assert "The evidence was cut" in seen.text()


def test_a_provider_that_keeps_nothing_gets_no_reasoning_again(bench: Bench) -> None:
    def unknown(request: JSONObject) -> tuple[int, str] | None:
        kept = [item["id"] for item in request["input"] if item["type"] == "reasoning"]
        return (404, f"Item with id '{kept[0]}' not found.") if kept else None

    turn = [{"type": "reasoning", "id": "rs_1", "summary": []}, SEARCH]
    seen = bench.run("keeps nothing", planning_first(turn, unknown))
    assert seen.answers() == ["Answer."]
    sent = [len(request["input"]) for request in bench.requests["keeps nothing"]]
    assert sent == [1, 4, 3, 3]


def test_a_model_without_tools_answers_and_the_reader_is_told(bench: Bench) -> None:
    def no_tools(request: JSONObject) -> tuple[int, str] | None:
        return (400, "gemma2 does not support tools") if "tools" in request else None

    seen = bench.run("no tools", planning_first([SEARCH], no_tools))
    assert seen.answers() == [seen.text()]
    assert seen.text().startswith("Answer.\n\n---\n")
    assert "The model can't call tools" in seen.text()
    assert "gemma2 does not support tools" in seen.text()


def test_a_template_that_wants_alternating_roles_answers_after_a_failed_run(bench: Bench) -> None:
    def alternate(request: JSONObject) -> tuple[int, str] | None:
        roles = [item["role"] for item in request["input"] if "role" in item]
        twice = any(role == "user" == after for role, after in itertools.pairwise(roles))
        return (500, "conversation roles must alternate user/assistant") if twice else None

    failed = bench.run("fails first", *[NO_SUCH_MODEL] * 2, **without_research())
    seen = bench.run(
        "alternates",
        planning_first([], alternate),
        series_id=failed.run.series_id,
        **{"agent.input": "And now?"},
    )
    assert seen.answers() == ["Answer."]
    joined = message("user", f"{QUESTION}\n\nAnd now?")
    assert bench.requests["alternates"][-1]["input"] == [joined]
    assert [item["content"] for item in seen.items[:2]] == [QUESTION, "And now?"]


def test_of_an_answer_in_two_phases_the_final_one_is_shown(bench: Bench) -> None:
    events: list[JSONObject] = []
    items = []
    for place, phase in enumerate(("commentary", "final_answer")):
        item = assistant_message(f"This is {phase}.") | {"phase": phase, "id": f"msg_{place}"}
        added = {"type": "response.output_item.added", "output_index": place, "item": item}
        text = {"type": "response.output_text.delta", "output_index": place}
        events += [added, {**text, "delta": "This is "}, {**text, "delta": f"{phase}."}]
        items.append(item)
    end = {"type": "response.completed", "response": response(*items)}
    seen = bench.run("phases", [*events, end], **without_research())
    assert seen.answers() == [seen.text()] == ["This is final_answer."]
    assert "commentary" not in json.dumps(seen.events)


def test_completed_around_an_incomplete_response_ends_as_incomplete(bench: Bench) -> None:
    end = {"type": "response.completed", "response": response(status="incomplete")}
    seen = bench.run("odd end", [*list(pieces("Half."))[:-1], end], **without_research())
    assert seen.ends() == ["response.incomplete"]
    assert without_note(seen.answers()[0]) == "Half."


def test_completed_around_a_failed_response_fails_the_run(bench: Bench) -> None:
    failed = response(status="failed") | {"error": {"code": "x", "message": "overloaded"}}
    end = {"type": "response.completed", "response": failed}
    seen = bench.run("odd failure", [*list(pieces("Half."))[:-1], end], **without_research())
    assert seen.status == "finished:failed"
    assert "overloaded" in seen.details
    assert seen.ends() == ["error"]
    assert seen.answers() == []


def test_a_planning_reply_that_hangs_ends_the_research_at_its_limit(bench: Bench) -> None:
    asked: dict[str, list[float]] = {"first": [], "second": []}

    def hangs(turn: str, request: JSONObject) -> Reply:
        asked[turn].append(time.monotonic())
        if request["stream"]:
            return pieces("Answer.")
        if turn == "second" and len(asked[turn]) == 1:
            return response(SEARCH)
        bench.end.wait()
        return response()

    limit = {"agent.max-research-seconds": 10}
    runs = {turn: bench.start(f"hangs {turn}", partial(hangs, turn), **limit) for turn in asked}
    for turn, run in runs.items():
        seen = bench.finish(f"hangs {turn}", run)
        assert asked[turn][-1] - asked[turn][0] < 15
        assert without_note(seen.text()) == "Answer."
        assert "ended at its limit of time" in seen.text()
        assert [item["type"] for item in seen.items if item["type"] == "message"] == ["message"] * 2


def test_a_reply_that_is_no_response_object_costs_no_wait(bench: Bench) -> None:
    started = time.monotonic()
    seen = bench.run("no object", {"hello": "there"}, {"hello": "again"}, pieces("Answer."))
    assert time.monotonic() - started < 60
    assert without_note(seen.text()) == "Answer."
    assert "The research ended early." in seen.text()


# --- What the reader is told


def test_an_invented_link_is_told_to_the_reader_everywhere_to_the_letter(bench: Bench) -> None:
    known, invented = f"{PAGE}#part", "https://invented.example/page"
    answer = f"It is [this]({known}), as [some]({invented}) say."
    turn = response(function_call("web_fetch", "page", url=PAGE))
    seen = bench.run("links", turn, response(), pieces(answer[:20], answer[20:]))
    told = f"{NOTE_OPENING}- Not among this answer's sources, so check them: <{invented}>"
    assert seen.text() == answer + told
    assert seen.answers() == [answer + told]
    assert f"{answer}{told}\n" in seen.log
    last = seen.events[-1]
    assert last["type"] == "response.completed"
    assert last["response"]["output"][-1]["content"][0]["text"] == answer + told

    again = bench.run(
        "links again",
        pieces(f"As I said: {known}"),
        series_id=seen.run.series_id,
        **without_research(),
        **{"agent.input": "Where?"},
    )
    assert again.answers()[-1] == f"As I said: {known}"
