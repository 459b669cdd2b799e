"""Whatever the model and the connectors give, a run keeps to its rules and limits."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local.services import JSONObject
from research_agent.agent_app import MAX_CALLS_PER_TURN, MAX_EVIDENCE_CHARS, TOOL_REFS, main
from research_agent.items import message_text, output_items
from research_agent.replies import REFUSAL_DELTA, TEXT_DELTA
from research_agent.texts import clean
from tests.scripted import END_TYPES, ScriptedSession, drawn_text, make_context, message, stored

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)


def any_json(floats: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    """Return a strategy for any JSON value."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | floats | ANY_TEXT,
        lambda held: st.lists(held, max_size=3) | st.dictionaries(ANY_TEXT, held, max_size=3),
        max_leaves=8,
    )


ANY_JSON = any_json(st.floats())
# The Runtime lets no event with NaN or Infinity through.
STRICT_JSON = any_json(st.floats(allow_nan=False, allow_infinity=False))
MODEL_ERRORS = st.sampled_from(
    [
        RuntimeError("the model is down"),
        TimeoutError("late"),
        ValueError("odd"),
        OSError(5, "io"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("peer closed connection"),
    ]
)
CONNECTOR_ERRORS = MODEL_ERRORS | st.sampled_from(
    [KeyError("arguments"), AttributeError("get"), RecursionError(), RuntimeError("429 too many")]
)

LONG_TEXT = st.builds(str.__mul__, ANY_TEXT, st.sampled_from([1, 100, 10_000]))
ARGUMENTS = (
    st.sampled_from(['{"query": "q"}', '{"url": "https://a.example"}'])
    | LONG_TEXT
    | st.builds(lambda text: json.dumps({"query": text}), LONG_TEXT)
)
CALL = st.fixed_dictionaries(
    {"type": st.just("function_call")},
    optional={
        "name": st.sampled_from(TOOL_REFS) | ANY_JSON,
        "call_id": st.sampled_from(["a", "b", "c" * 65]) | ANY_JSON,
        "arguments": ARGUMENTS | ANY_JSON,
        "id": ANY_JSON,
    },
)
REASONING = st.fixed_dictionaries({"type": st.just("reasoning")}, optional={"id": ANY_TEXT})
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["output_text", "refusal", "text"])},
    optional={"text": LONG_TEXT | ANY_JSON, "refusal": ANY_TEXT},
)
PHASE = st.sampled_from(["commentary", "final_answer"]) | ANY_JSON
DRAFT = st.fixed_dictionaries(
    {"type": st.just("message"), "role": st.just("assistant"), "content": st.lists(PART)}
)
MESSAGE_OF_TEXT = st.fixed_dictionaries(
    {
        "type": st.just("message"),
        "content": st.lists(
            st.fixed_dictionaries({"type": st.just("output_text"), "text": ANY_TEXT}), max_size=2
        ),
    }
)
MESSAGE = st.fixed_dictionaries(
    {"type": st.just("message")},
    optional={
        "role": st.sampled_from(["assistant", "user", "system"]) | ANY_JSON,
        "content": st.lists(PART, max_size=2) | ANY_JSON,
        "phase": PHASE,
    },
)
OUTPUT = st.lists(CALL | CALL | REASONING | DRAFT | MESSAGE | ANY_JSON, max_size=12)
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
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    replies=st.lists(REPLY | REPLY | ANY_JSON | MODEL_ERRORS, min_size=11, max_size=11),
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
    # What a host's session raises keeps its type.
    except Exception as exc:  # noqa: BLE001
        failure = str(exc) or repr(exc)

    if failure is None and stored(context) == before:
        # A host without an endpoint may show the answer by itself, and return nothing.
        assert output_items(session.given[-1]) == []
    elif failure is None:
        assert session.answers()[:-1] == ["hello"]
        assert session.answers()[-1].strip()
        assert len(stored(context)) == len(before) + 1
        assert "tools" not in session.requests[-1]
    else:
        assert failure.strip()
        assert session.emitted[-1]["message"] == failure == clean(failure)
        assert stored(context) == before
    planned = [request for request in session.requests if "tools" in request]
    assert len(planned) <= 2 * turns
    assert len(session.requests) <= 2 * turns + 2
    assert len(session.called) <= turns * MAX_CALLS_PER_TURN
    assert {call["name"] for call in session.called} <= set(TOOL_REFS)
    evidence = sum(len(item.get("output", "")) for item in session.requests[-1]["input"])
    assert evidence <= MAX_EVIDENCE_CHARS
    capsys.readouterr().out.encode()


ANSWER_RESPONSE = st.fixed_dictionaries(
    {},
    optional={
        "output": st.lists(MESSAGE_OF_TEXT, max_size=2) | STRICT_JSON,
        "status": st.sampled_from(["completed", "incomplete", "failed", "cancelled"]) | STRICT_JSON,
        "error": st.none() | st.fixed_dictionaries({"message": ANY_TEXT}),
    },
)
ADDED_MESSAGE = st.fixed_dictionaries(
    {"type": st.just("message")},
    optional={"id": ANY_TEXT, "phase": st.sampled_from(["commentary", "final_answer"])},
)
EVENT = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            [*END_TYPES, TEXT_DELTA, TEXT_DELTA, REFUSAL_DELTA, "response.output_item.added"]
        )
    },
    optional={
        "output_index": st.integers(0, 2) | STRICT_JSON,
        "item_id": ANY_TEXT,
        "item": ADDED_MESSAGE | STRICT_JSON,
        "delta": ANY_TEXT | STRICT_JSON,
        "response": ANSWER_RESPONSE | STRICT_JSON,
        "message": ANY_TEXT | STRICT_JSON,
        "error": STRICT_JSON,
    },
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    first=st.lists(EVENT | STRICT_JSON.filter(lambda value: isinstance(value, dict)), max_size=6),
    second=st.lists(EVENT, max_size=4),
)
def test_every_stream_gives_one_answer_or_fails_with_a_message(
    runtime: list[Any], first: list[JSONObject], second: list[JSONObject]
) -> None:
    runtime[:] = [first, second]
    context = make_context(**{"agent.max-tool-turns": 0})
    session = ScriptedSession(context, [])
    failure = None
    try:
        main(session, context)
    except (RuntimeError, TypeError, ValueError) as exc:
        failure = str(exc)
    runtime.clear()

    ends = [event["type"] for event in session.emitted if event["type"] in END_TYPES]
    assert ends == [session.emitted[-1]["type"]]
    shown = drawn_text(session.emitted)
    if failure is None:
        assert message_text(stored(context)[-1]["content"]) == shown
        assert shown.strip()
    else:
        assert session.emitted[-1]["message"] == failure
        assert session.answers() == []
