"""Whatever the model and the connectors give, a run keeps to its rules and limits."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from research_agent.agent_app import (
    MAX_CALLS_PER_TURN,
    MAX_EVIDENCE_CHARS,
    TOOL_REFS,
    main,
)
from tests.scripted import JSONObject, ScriptedSession, make_context, message, stored

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda held: st.lists(held, max_size=3) | st.dictionaries(ANY_TEXT, held, max_size=3),
    max_leaves=8,
)
MODEL_ERRORS = st.sampled_from(
    [RuntimeError("the model is down"), TimeoutError("late"), ValueError("odd"), OSError(5, "io")]
)
CONNECTOR_ERRORS = MODEL_ERRORS | st.sampled_from(
    [KeyError("arguments"), AttributeError("get"), httpx.ReadTimeout("slow"), RecursionError()]
)

ARGUMENTS = st.sampled_from(['{"query": "q"}', '{"url": "https://a.example"}']) | ANY_TEXT
CALL = st.fixed_dictionaries(
    {"type": st.just("function_call")},
    optional={
        "name": st.sampled_from(TOOL_REFS) | ANY_JSON,
        "call_id": st.sampled_from(["a", "b"]) | ANY_JSON,
        "arguments": ARGUMENTS | ANY_JSON,
        "id": ANY_JSON,
    },
)
REASONING = st.fixed_dictionaries({"type": st.just("reasoning")}, optional={"id": ANY_TEXT})
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["output_text", "refusal", "text"])},
    optional={"text": ANY_TEXT | ANY_JSON, "refusal": ANY_TEXT},
)
MESSAGE = st.fixed_dictionaries(
    {"type": st.just("message")},
    optional={
        "role": st.sampled_from(["assistant", "user", "system"]) | ANY_JSON,
        "content": st.lists(PART, max_size=2) | ANY_JSON,
    },
)
OUTPUT = st.lists(CALL | CALL | REASONING | MESSAGE | ANY_JSON, max_size=12)
REPLY = st.fixed_dictionaries(
    {"object": st.just("response")},
    optional={
        "status": st.sampled_from(["completed", "incomplete", "failed"]) | ANY_JSON,
        "output": OUTPUT | ANY_JSON,
        "error": st.none() | ANY_JSON,
    },
)
RESULT = (
    st.fixed_dictionaries({"output": ANY_JSON.map(json.dumps) | ANY_JSON})
    | ANY_JSON
    | CONNECTOR_ERRORS
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    replies=st.lists(REPLY | REPLY | ANY_JSON | MODEL_ERRORS, min_size=30, max_size=30),
    results=st.lists(RESULT, min_size=1, max_size=4),
    turns=st.integers(0, 4),
)
def test_every_run_gives_one_answer_or_fails_with_a_message(
    capsys: pytest.CaptureFixture[str], replies: list[Any], results: list[Any], turns: int
) -> None:
    def connector(call: JSONObject) -> Any:
        result = results[len(call["call_id"]) % len(results)]
        if isinstance(result, Exception):
            raise result
        return result

    earlier = [message("user", "hello"), message("assistant", "hello")]
    context = make_context(earlier, **{"agent.max-tool-turns": turns})
    before = stored(context)
    session = ScriptedSession(context, replies, connector)
    failure = None
    try:
        main(session, context)
    except (RuntimeError, TypeError, ValueError) as exc:
        failure = str(exc)

    if failure is None:
        assert session.answers()[:-1] == ["hello"]
        assert session.answers()[-1].strip()
        assert len(stored(context)) == len(before) + 1
        assert "tools" not in session.requests[-1]
    else:
        assert failure.strip()
        assert session.emitted[-1]["message"] == failure == failure.encode().decode()
        assert stored(context) == before
    planned = [request for request in session.requests if "tools" in request]
    assert len(planned) <= 2 * turns
    assert len(session.requests) <= 2 * turns + 2
    assert len(session.called) <= turns * MAX_CALLS_PER_TURN
    assert {call["name"] for call in session.called} <= set(TOOL_REFS)
    evidence = sum(len(item.get("output", "")) for item in session.requests[-1]["input"])
    assert evidence <= MAX_EVIDENCE_CHARS
    capsys.readouterr().out.encode()
