"""What a run does when all goes well, and where its limits are."""

import itertools
import json
import threading
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from local.services import JSONObject, assistant_message, function_call, response
from research_agent import agent_app
from research_agent.agent_app import (
    MAX_EVIDENCE_CHARS,
    MAX_HISTORY_CHARS,
    MAX_OPEN_CALLS,
    MAX_OUTPUT_CHARS,
    conversation_messages,
    private_response,
)
from research_agent.items import connector_error_output, message_text, size
from tests.scripted import (
    ANSWER,
    QUESTION,
    ScriptedSession,
    make_context,
    message,
    page_for,
    run_scripted,
    stored,
)

PYPROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())


def search(call_id: str) -> JSONObject:
    """Return a call of the model whose query is its id."""
    return function_call("web_search", call_id, query=call_id)


def test_the_defaults_of_the_project_are_the_constants_of_the_module() -> None:
    config = PYPROJECT["tool"]["flwr"]["app"]["config"]["agent"]
    assert config.pop("input")
    assert config == {
        "model": agent_app.MODEL,
        "max-tool-turns": agent_app.MAX_TOOL_TURNS,
        "max-research-seconds": agent_app.MAX_RESEARCH_SECONDS,
    }


def test_the_package_depends_on_flower_alone_and_has_no_group_called_dev() -> None:
    assert PYPROJECT["project"]["dependencies"] == ["flwr==1.35.0"]
    assert "dev" not in PYPROJECT["dependency-groups"]


def test_a_run_plans_in_private_and_then_asks_for_one_answer() -> None:
    reasoning = {"type": "reasoning", "id": "r", "summary": []}
    calls = [search("a"), search("b")]
    session = run_scripted(response(reasoning, *calls), response(), ANSWER)
    first, second, answer = session.requests

    question = message("user", QUESTION)
    tools = session.tools(["web_search", "web_fetch"])
    today = datetime.now(UTC).date().isoformat()
    planning = {
        "model": "openai/gpt-5.6-sol",
        "tools": tools,
        "tool_choice": "auto",
        "stream": False,
    }
    evidence = [
        reasoning,
        *calls,
        *(
            {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": json.dumps({"content": f"page for {call['arguments']}"}),
            }
            for call in calls
        ),
    ]
    assert first["instructions"] == second["instructions"]
    for request, says in ((first, "3 turns"), (second, "8 calls"), (answer, "No research")):
        instructions = request.pop("instructions")
        assert says in instructions
        assert today in instructions
    assert first == planning | {"input": [question]}
    assert second == planning | {"input": [question, *evidence]}
    assert answer == {
        "model": "openai/gpt-5.6-sol",
        "input": [question, *evidence],
        "stream": True,
    }


def test_the_calls_go_to_the_connectors_as_the_model_made_them() -> None:
    session = run_scripted(response(search("a")), response(), ANSWER)
    assert session.called == [search("a")]


def test_the_log_shows_each_call_as_it_starts_and_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fetch = function_call("web_fetch", "f", url="https://a.example/page?token=SECRET")
    run_scripted(response(search("federated AI"), fetch), response(), ANSWER)
    assert capsys.readouterr().out == (
        "web_search: federated AI\n"
        "web_fetch: https://a.example/page?...\n"
        "Federated AI trains where the data is.\n"
    )


def test_the_answer_is_stored_in_the_form_that_the_runtime_stores() -> None:
    session = run_scripted(response(), ANSWER)
    assert stored(session.context)[-1] == assistant_message(
        "Federated AI trains where the data is."
    )


@pytest.mark.parametrize("before", [[], [message("user", "first"), {"type": "reasoning"}]])
@pytest.mark.parametrize("reply", [ANSWER, RuntimeError("down")])
def test_a_private_response_leaves_the_stored_items_as_they_were(
    before: list[JSONObject], reply: object
) -> None:
    context = make_context(before, **{"agent.input": ""})
    if not before:
        del context.state["items"]
    session = ScriptedSession(context, [reply])
    if isinstance(reply, RuntimeError):
        with pytest.raises(RuntimeError, match="down"):
            private_response(session, context, {"input": [message("user", QUESTION)]})
    else:
        assert private_response(session, context, {"input": [message("user", QUESTION)]}) == ANSWER
    assert stored(context) == before
    assert ("items" in context.state) == bool(before)


def test_message_text_joins_text_and_refusal_parts_by_lines() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b"},
        {"type": "refusal", "refusal": "c"},
    ]
    assert message_text(parts) == "a\nb\nc"
    assert message_text("plain") == "plain"


def test_a_connector_error_output_belongs_to_its_call() -> None:
    output = connector_error_output({"call_id": "c"}, TimeoutError("late"))
    assert output == {
        "type": "function_call_output",
        "call_id": "c",
        "output": '{"error": "TimeoutError(\'late\')"}',
    }


# --- Calls of a turn


def test_four_calls_of_a_turn_run_at_the_same_time_and_no_more() -> None:
    together = threading.Barrier(MAX_OPEN_CALLS, timeout=10)
    open_calls: list[int] = []

    def connector(call: JSONObject) -> JSONObject:
        open_calls.append(1)
        assert sum(open_calls) <= MAX_OPEN_CALLS
        together.wait()
        open_calls.append(-1)
        return page_for(call)

    calls = [search(str(n)) for n in range(8)]
    session = run_scripted(response(*calls), response(), ANSWER, connector=connector)
    assert [output["content"] for output in session.outputs()] == [
        f"page for {call['arguments']}" for call in calls
    ]


def test_outputs_keep_the_order_of_the_calls_when_the_first_is_the_slowest() -> None:
    last_is_done = threading.Event()

    def connector(call: JSONObject) -> JSONObject:
        if call["call_id"] == "first":
            assert last_is_done.wait(10)
        if call["call_id"] == "last":
            last_is_done.set()
        return page_for(call)

    calls = [search("first"), search("middle"), search("last")]
    session = run_scripted(response(*calls), response(), ANSWER, connector=connector)
    assert [item["call_id"] for item in session.evidence()[3:]] == ["first", "middle", "last"]


def test_no_further_turn_starts_when_the_time_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    release = threading.Event()

    def connector(call: JSONObject) -> JSONObject:
        release.wait()
        return page_for(call)

    started = time.monotonic()
    session = run_scripted(
        response(search("hangs")),
        ANSWER,
        connector=connector,
        config={"agent.max-research-seconds": 1, "agent.max-tool-turns": 10},
    )
    release.set()
    assert 1 <= time.monotonic() - started < 5
    assert "time" in session.outputs()[0]["error"]
    assert "ended at its limit of time" in capsys.readouterr().out


def test_planning_that_fails_after_the_time_is_up_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = itertools.count(0.0, 50.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    run_scripted(RuntimeError("late"), ANSWER, config={"agent.max-research-seconds": 99})


def test_messages_that_no_request_has_left_out_are_not_called_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = itertools.count(0.0, 50.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    too_long = response(status="failed") | {"error": {"message": "too long", "code": "400"}}
    earlier = [message("user", "first"), message("assistant", "answer")]
    session = run_scripted(
        too_long, ANSWER, items=earlier, config={"agent.max-research-seconds": 99}
    )
    assert session.requests[-1]["input"] == [*earlier, message("user", QUESTION)]
    log = capsys.readouterr().out
    assert "left out" not in log
    assert "cut to a quarter" not in log


# --- Evidence and history


def test_the_research_ends_when_the_evidence_reaches_its_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def connector(call: JSONObject) -> JSONObject:
        return {**page_for(call), "output": json.dumps({"content": "p " * 20_000})}

    turns = [response(*(search(f"{turn}-{n}") for n in range(8))) for turn in range(4)]
    session = run_scripted(*turns, ANSWER, connector=connector, config={"agent.max-tool-turns": 10})
    assert len(session.called) >= 24
    assert MAX_EVIDENCE_CHARS - MAX_OUTPUT_CHARS < size(session.evidence()) <= MAX_EVIDENCE_CHARS
    assert "ended at its limit for evidence" in capsys.readouterr().out


def test_the_newest_messages_within_the_limit_are_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    half = MAX_HISTORY_CHARS // 2
    items = [
        message("user", "oldest"),
        message("assistant", "o" * half),
        message("user", "n" * half),
        message("assistant", "a" * half),
    ]
    session = run_scripted(response(), ANSWER, items=items)
    for request in session.requests:
        assert request["input"] == [*items[2:], message("user", QUESTION)]
        assert "only the newest messages are given" in request["instructions"]
    assert "(2) are left out" in capsys.readouterr().out
    assert stored(session.context)[:4] == items


def test_a_history_within_the_limit_is_replayed_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    items = [message("user", "u" * (MAX_HISTORY_CHARS - 1)), message("assistant", "a")]
    session = run_scripted(response(), ANSWER, items=items)
    assert session.requests[0]["input"][:2] == items
    assert "left out" not in capsys.readouterr().out


def test_the_current_question_is_always_whole() -> None:
    question = "q" * (MAX_HISTORY_CHARS + 1)
    items = [message("user", "first"), message("assistant", "answer")]
    session = run_scripted(response(), ANSWER, items=items, config={"agent.input": question})
    assert session.requests[0]["input"] == [*items, message("user", question)]


def test_tool_output_is_not_parsed_to_read_the_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []
    loads: Any = json.loads

    def recorded(text: str) -> Any:
        parsed.append(text)
        return loads(text)

    output = {"type": "function_call_output", "call_id": "c", "output": '{"type":"message"}'}
    context = make_context([output, message("user", "first"), output])
    monkeypatch.setattr(json, "loads", recorded)
    assert [m["content"] for m in conversation_messages(context)] == ["first", QUESTION]
    assert len(parsed) == 2
