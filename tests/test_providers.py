"""What real providers, pages and searches send, case by case."""

import itertools
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from local.services import JSONObject, assistant_message, function_call, response, text_events
from research_agent import agent_app
from research_agent.agent_app import (
    MAX_EVIDENCE_CHARS,
    MAX_ITEM_CHARS,
    MAX_OUTPUT_CHARS,
    MIN_OUTPUT_CHARS,
    main,
)
from research_agent.items import size
from tests.conftest import Endpoint
from tests.scripted import (
    ANSWER,
    END_TYPES,
    QUESTION,
    ScriptedSession,
    drawn_text,
    make_context,
    message,
    page_for,
    run_scripted,
    stored,
    without_note,
)
from tests.test_cases import DELTA, GOOD_CALL, TEXT, case, failed, output_of, sent_output

REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}


def run_on(
    runtime: Endpoint, *replies: Any, items: list[JSONObject] | None = None, **session: Any
) -> ScriptedSession:
    """Run `main` on an endpoint that makes these replies to planning and answer requests."""
    runtime += replies
    return run_scripted(items=items or [], **session)


def failed_on(runtime: Endpoint, *replies: Any, **config: Any) -> str:
    """Run `main` likewise and return why the run failed."""
    runtime += replies
    session = ScriptedSession(make_context(**config), [])
    with pytest.raises(RuntimeError) as failure:
        main(session, session.context)
    assert session.answers() == []
    assert [event["type"] for event in session.emitted if event["type"] in END_TYPES] == ["error"]
    return str(failure.value)


def refusal(status: int, says: object) -> tuple[int, JSONObject]:
    """Return how Flower 1.35.0 passes on what a provider refused."""
    text = says if isinstance(says, str) else json.dumps(says, separators=(",", ":"))
    message = f"Model provider request failed: {status} {text}"
    return 502, {"error": {"message": message, "type": "server_error", "param": None}}


def stream_ended(last: JSONObject) -> JSONObject:
    """Return how Flower 1.35.0 tells of a provider's stream that ended with this event."""
    last_event = json.dumps(last, separators=(",", ":"))
    says = f"Model provider stream ended before a terminal event: 200 {last_event}"
    return {"type": "error", "code": "model_stream_failed", "message": says}


OUT_OF_WINDOW = {"message": "exceeds the context window", "code": "context_length_exceeded"}
TOO_LONG = refusal(400, {"error": {"message": "exceeds the context", "code": 400}})
NO_TOOLS = refusal(400, {"error": {"message": "gemma2 does not support tools"}})
BUSY = refusal(503, "overloaded")
ECHO = [function_call("web_search", "c", code=404)]
SERVER_ERROR = "(500 Internal Server Error)"
LOST = (502, {"error": {"message": "Model provider request failed: connection reset by peer"}})


# --- Planning on the endpoint


def test_planning_is_private_on_the_endpoint_too(runtime: Endpoint) -> None:
    session = run_on(runtime, response(assistant_message("A draft."), GOOD_CALL), response(), TEXT)
    assert [request["stream"] for request in runtime.requests] == [False, False, True]
    assert session.requests == []
    assert [item["type"] for item in stored(session.context)] == ["message", "message"]
    assert "draft" not in json.dumps(session.emitted)


def test_case_38_a_planning_reply_that_hangs_ends_the_research_at_its_limit(
    runtime: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    release = threading.Event()

    def hangs() -> Iterator[JSONObject]:
        release.wait()
        yield from ()

    started = time.monotonic()
    config = {"agent.max-research-seconds": 2}
    session = run_on(runtime, response(GOOD_CALL), hangs(), TEXT, config=config)
    release.set()
    assert 2 <= time.monotonic() - started < 7
    assert session.answers() == ["Federated AI."]
    assert runtime.requests[-1]["input"][-1]["type"] == "function_call_output"
    assert "ended at its limit of time" in capsys.readouterr().out


@pytest.mark.parametrize(
    "odd",
    [
        case(39, "text", (200, "hello")),
        case(39, "list", (200, "[1, 2]")),
        case(39, "number", (200, "5")),
        case(39, "null", (200, "null")),
        case(39, "blank", (200, "")),
        case(39, "cancelled", response(status="cancelled")),
        case(39, "failed", failed("down")),
        case(39, "task", (502, {"error": {"message": "boom", "code": "model_task_failed"}})),
        case(39, "html", (502, "<html><title>502 Bad Gateway</title></html>")),
        case(39, "launch", (504, {"error": {"message": "not launched in time"}})),
    ],
)
def test_a_reply_that_is_no_response_counts_as_failed_at_once(
    runtime: Endpoint, odd: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    session = run_on(runtime, odd, response(GOOD_CALL), odd, odd, TEXT)
    assert session.answers() == ["Federated AI."]
    assert len(session.called) == 1
    log = without_note(capsys.readouterr().out)
    assert log.count("A planning request failed") == 3
    assert "The research ended early." in log


@pytest.mark.parametrize(
    "exc",
    [
        case(40, "read-timeout", httpx.ReadTimeout("slow")),
        case(40, "protocol", httpx.RemoteProtocolError("peer closed connection")),
        case(40, "key", KeyError("output")),
        case(40, "attribute", AttributeError("'NoneType' object has no attribute 'get'")),
        case(40, "recursion", RecursionError("maximum recursion depth exceeded")),
    ],
)
def test_any_exception_counts_as_a_failure_of_the_model(exc: Exception) -> None:
    session = run_scripted(exc, response(GOOD_CALL), exc, exc, exc, ANSWER)
    assert len(session.called) == 1
    assert session.answers() == ["Federated AI trains where the data is."]


def test_case_40_a_reply_nested_too_deep_counts_as_failed(runtime: Endpoint) -> None:
    deep: Any = "x"
    for _ in range(600):
        deep = [deep]
    odd = response({"type": "reasoning", "content": deep})
    assert run_on(runtime, odd, odd, TEXT).answers() == ["Federated AI."]


# --- A second try is lighter


def test_case_41_what_is_left_out_after_a_refusal_stays_out(runtime: Endpoint) -> None:
    first = response(REASONING, {**GOOD_CALL, "id": "fc_1"})
    second = response({**REASONING, "id": "rs_2"}, {**GOOD_CALL, "id": "fc_2", "call_id": "b"})
    unknown = refusal(404, {"error": {"message": "Item with id 'rs_1' not found."}})
    run_on(runtime, first, unknown, second, response(), TEXT)
    call, output = "function_call", "function_call_output"
    assert [[item["type"] for item in request["input"]] for request in runtime.requests] == [
        ["message"],
        ["message", "reasoning", call, output],
        ["message", call, output],
        ["message", call, output, call, output],
        ["message", call, output, call, output],
    ]
    assert not any("id" in item for item in runtime.requests[-1]["input"])


@pytest.mark.parametrize(
    ("failure", "tries"),
    [
        case(41, "overloaded", BUSY, 2),
        case(41, "rate", refusal(429, "slow down"), 2),
        case(41, "late", refusal(408, "timeout"), 2),
        case(41, "lost", LOST, 2),
        case(41, "stream", [{"type": "error", "message": "overloaded"}], 2),
        case(41, "too-long", TOO_LONG, 5),
        case(41, "too-large", refusal(413, "too large"), 5),
        case(41, "tools-too-long", refusal(400, "prompt too long: 9 tokens in tools"), 5),
        case(
            41,
            "code-in-the-stream",
            [{"type": "error", "error": {"message": "long", "code": "400"}}],
            5,
        ),
        case(41, "window-in-the-stream", [{"type": "error", "error": OUT_OF_WINDOW}], 5),
        case(41, "window-in-the-response", failed("exceeds the context window"), 5),
        case(41, "window-with-500", refusal(500, {"error": OUT_OF_WINDOW}), 5),
        case(41, "question-lost", refusal(500, "no user query found in messages"), 5),
        case(41, "too-large-for-the-rate", refusal(429, "Request too large: Limit 9 tokens"), 5),
        case(41, "window-as-text", [{"type": "error", "error": "a context length of only 9"}], 5),
    ],
)
def test_only_what_was_refused_is_cut_and_tried_on(
    runtime: Endpoint, failure: Any, tries: int
) -> None:
    page = "Federated AI trains where the data is. " * 1_000
    runtime += [response(REASONING, GOOD_CALL), *[failure] * tries]
    session = ScriptedSession(make_context(**{"agent.max-tool-turns": 1}), [], output_of(page))
    with pytest.raises(RuntimeError, match="The answer request failed"):
        main(session, session.context)
    outputs = [len(request["input"][-1]["output"]) for request in runtime.requests[1:]]
    assert outputs[0] == outputs[1]
    for earlier, later in itertools.pairwise(outputs[1:]):
        assert later <= max(earlier // 4, MIN_OUTPUT_CHARS)
    assert "Federated AI trains" in runtime.requests[-1]["input"][-1]["output"]


def test_case_41_a_wrong_key_cuts_nothing(
    runtime: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong_key = refusal(401, {"error": {"message": "Incorrect API key provided."}})
    earlier = [message("user", "Hello"), message("assistant", "Hi. " * 500)]
    runtime += [wrong_key] * 4
    session = ScriptedSession(make_context(earlier), [])
    with pytest.raises(RuntimeError, match="Incorrect API key"):
        main(session, session.context)
    assert all(request["input"] == runtime.requests[0]["input"] for request in runtime.requests)
    log = capsys.readouterr().out
    assert "left out" not in log
    assert "cut to a quarter" not in log


def test_case_41_the_earlier_messages_are_cut_too_and_the_log_says_so(
    runtime: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = [message("user", "u" * 1_000), message("assistant", "a" * 300)]
    newer = [message("user", "u" * 50), message("assistant", "a" * 50)]
    session = run_on(runtime, TOO_LONG, TOO_LONG, response(), TEXT, items=earlier + newer)
    question = message("user", QUESTION)
    assert [request["input"] for request in runtime.requests] == [
        [*earlier, *newer, question],
        [*newer, question],
        [question],
        [question],
    ]
    assert session.answers()[-1] == "Federated AI."
    log = capsys.readouterr().out
    assert log.count("All but the question is cut to a quarter.") == 2
    assert "The evidence was cut" not in log
    assert [item["content"] for item in stored(session.context)][:2] == ["u" * 1_000, "a" * 300]


def test_case_41_a_long_question_that_failed_does_not_make_the_next_fail(
    runtime: Endpoint,
) -> None:
    earlier = [message("user", "u" * 100_000), message("user", "short")]
    session = run_on(runtime, TOO_LONG, TOO_LONG, response(), TEXT, items=earlier)
    assert runtime.requests[1]["input"][0]["content"].endswith(f"u\n\nshort\n\n{QUESTION}")
    assert runtime.requests[2]["input"] == [message("user", f"short\n\n{QUESTION}")]
    assert session.answers() == ["Federated AI."]


def test_case_41_a_small_window_gets_as_much_evidence_as_fits(runtime: Endpoint) -> None:
    def window(*then: Any) -> Any:
        replies = iter(then)

        def model(request: JSONObject) -> Any:
            return next(replies) if size(request["input"]) < 8_000 else TOO_LONG

        return model

    model = window(response(GOOD_CALL), response(), TEXT)
    page = "A sentence that says nothing. " * 4_000
    session = run_on(runtime, *[model] * 4, connector=output_of(page))
    assert session.answers() == ["Federated AI."]
    assert 3_000 < len(runtime.requests[-1]["input"][-1]["output"]) <= MAX_OUTPUT_CHARS // 4


def test_case_41_a_model_that_refuses_tools_answers_with_the_whole_conversation(
    runtime: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = [message("user", "first"), message("assistant", "answer")]
    session = run_on(runtime, NO_TOOLS, NO_TOOLS, TEXT, items=earlier)
    assert runtime.requests[-1]["input"] == [*earlier, message("user", QUESTION)]
    assert session.answers()[-1] == "Federated AI."
    assert "The model can't call tools." in capsys.readouterr().out


def test_case_56_a_request_that_is_too_long_is_no_model_without_tools(runtime: Endpoint) -> None:
    too_long = refusal(400, {"error": {"message": "prompt too long: 9 tokens in tools"}})
    session = run_on(runtime, too_long, too_long, TEXT)
    assert "The research ended early." in drawn_text(session.emitted)
    assert "can't call tools" not in drawn_text(session.emitted)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (400, "doesn't support tool calling without `tools=` param"),
        (400, "The toolConfig field must be defined"),
        (500, "Tool call IDs should be alphanumeric strings with length 9! at row 91"),
    ],
)
def test_case_41_a_model_that_takes_no_calls_is_told_what_they_returned(
    runtime: Endpoint, status: int, says: str
) -> None:
    needs_tools = refusal(status, {"error": {"message": says}})
    session = run_on(runtime, response(GOOD_CALL), response(), needs_tools, TEXT)
    (told,) = runtime.requests[-1]["input"]
    assert told["role"] == "user"
    assert told["content"].startswith(f"{QUESTION}\n\n")
    assert told["content"].endswith(runtime.requests[-2]["input"][-1]["output"])
    assert session.answers() == ["Federated AI."]


def test_case_41_what_was_told_as_text_stays_so_when_later_planning_fails(
    runtime: Endpoint,
) -> None:
    needs_tools = refusal(400, {"error": {"message": "no tool calls here"}})
    other = function_call("web_search", "other", query="privacy")
    turns = [response(GOOD_CALL), needs_tools, response(other), BUSY, BUSY]
    session = run_on(runtime, *turns, TEXT)
    (told,) = runtime.requests[-1]["input"]
    assert told["content"].count("A tool returned: ") == 2
    assert session.answers() == ["Federated AI."]


def test_nothing_is_said_to_be_cut_where_no_request_follows(
    runtime: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    too_long = {"type": "error", "message": "context length exceeded"}
    runtime.append([{"type": DELTA, "delta": "Fed"}, too_long])
    context = make_context([message("user", "first")], **{"agent.max-tool-turns": 0})
    with pytest.raises(RuntimeError, match="context length"):
        main(ScriptedSession(context, []), context)
    assert "cut to a quarter" not in capsys.readouterr().out


def test_case_41_a_refusal_with_nothing_to_cut_leaves_later_evidence_whole(
    runtime: Endpoint,
) -> None:
    page = output_of("Federated AI trains where the data is. " * 100)
    run_on(runtime, refusal(409, "busy"), response(GOOD_CALL), response(), TEXT, connector=page)
    assert len(runtime.requests[-1]["input"][-1]["output"]) > 3_000


@pytest.mark.parametrize("says", ["unknown argument: tool_choice", "no such field"])
def test_case_41_what_was_cut_in_vain_is_whole_again_for_the_answer(
    runtime: Endpoint, says: str
) -> None:
    def without_planning(request: JSONObject) -> Any:
        return refusal(400, {"error": {"message": says}}) if "tools" in request else TEXT

    earlier = [message("user", "first"), message("assistant", "answer")]
    page = output_of("Federated AI trains where the data is. " * 1_000)
    tries = 2 if "tool" in says else 4
    planning = [response(GOOD_CALL), *[without_planning] * tries]
    session = run_on(runtime, *planning, without_planning, items=earlier, connector=page)
    assert runtime.requests[-1]["input"] == runtime.requests[1]["input"]
    assert "The evidence was cut" not in drawn_text(session.emitted)


def test_fields_that_are_null_are_left_out_of_the_second_try(runtime: Endpoint) -> None:
    refused = refusal(400, "status: null is not allowed")
    call = {**GOOD_CALL, "status": None}
    run_on(runtime, response(call), refused, response(), TEXT)
    assert runtime.requests[1]["input"][1] == call
    assert runtime.requests[2]["input"][1] == GOOD_CALL


def test_case_41_the_second_try_gives_drafts_as_text(runtime: Endpoint) -> None:
    draft = assistant_message("A draft.") | {"id": "msg_1", "phase": "commentary"}
    refused = refusal(400, "input should be a valid string")
    session = run_on(runtime, response(draft, GOOD_CALL), refused, response(), TEXT)
    assert runtime.requests[1]["input"][1] == draft
    assert runtime.requests[2]["input"][1] == message("assistant", "A draft.")
    assert session.answers() == ["Federated AI."]


def test_case_45_messages_of_a_role_in_a_row_are_joined_for_the_second_try_alone(
    runtime: Endpoint,
) -> None:
    earlier = [message("user", "unanswered"), message("user", "again")]
    alternate = refusal(500, "conversation roles must alternate user/assistant")
    session = run_on(runtime, alternate, response(), TEXT, items=earlier)
    question = message("user", QUESTION)
    joined = message("user", f"unanswered\n\nagain\n\n{QUESTION}")
    assert [request["input"] for request in runtime.requests] == [
        [*earlier, question],
        [joined],
        [joined],
    ]
    assert [item["content"] for item in stored(session.context)][:3] == [
        "unanswered",
        "again",
        QUESTION,
    ]


def test_case_45_the_second_try_begins_with_a_message_of_the_user(runtime: Endpoint) -> None:
    earlier = [message("assistant", "Ask me.")]
    alternate = refusal(500, "conversation roles must alternate user/assistant")
    session = run_on(runtime, alternate, response(), TEXT, items=earlier)
    question = message("user", QUESTION)
    inputs = [request["input"] for request in runtime.requests]
    assert inputs == [[*earlier, question], [question], [question]]
    assert session.answers() == ["Ask me.", "Federated AI."]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        case(
            54,
            "message",
            refusal(404, {"error": {"message": "no such model"}}),
            "no such model (404 Not Found)",
        ),
        case(54, "text", refusal(503, "overloaded"), "overloaded (503 Service Unavailable)"),
        case(54, "blank", refusal(503, ""), "503 Service Unavailable"),
        case(
            54,
            "detail",
            refusal(405, {"detail": "Method Not Allowed"}),
            "Method Not Allowed (405 Method Not Allowed)",
        ),
        case(
            54,
            "html",
            refusal(502, "<html>\n<head><title>502 Bad Gateway</title></head><body><h1>x"),
            "502 Bad Gateway",
        ),
        case(
            54, "untitled", refusal(503, "<!DOCTYPE html><body>x</body>"), "503 Service Unavailable"
        ),
        case(54, "odd-status", refusal(529, {"error": {"type": "overloaded"}}), "529"),
        case(
            54,
            "other-page",
            (
                502,
                {
                    "error": {
                        "message": "Model provider returned invalid JSON: "
                        "<html><title>Log in</title>"
                    }
                },
            ),
            "Model provider returned invalid JSON: Log in (502 Bad Gateway)",
        ),
        case(
            54,
            "no-type",
            [{"error": {"message": "down", "code": 503}}],
            "down (503 Service Unavailable)",
        ),
        case(54, "text-error", [{"error": "down"}], "down"),
        case(54, "nothing", [{"type": "error"}], "The model provider gave no reason."),
        case(
            54, "long", refusal(500, "e" * 900_000), "e" * 300 + "... (500 Internal Server Error)"
        ),
        case(
            54,
            "list",
            refusal(400, [{"error": {"code": 400, "message": "odd", "status": "INVALID"}}]),
            "odd (400 Bad Request)",
        ),
        case(
            54,
            "details",
            refusal(422, {"message": {"detail": [{"loc": ["body"], "msg": "odd"}]}}),
            "odd (422 Unprocessable Entity)",
        ),
        case(
            54,
            "detail",
            refusal(422, {"detail": [{"msg": "odd"}]}),
            "odd (422 Unprocessable Entity)",
        ),
        case(
            54,
            "raw",
            refusal(
                502,
                {
                    "error": {
                        "message": "Provider returned error",
                        "metadata": {"raw": '{"error":{"message":"odd"}}', "provider_name": "A"},
                    }
                },
            ),
            "odd (502 Bad Gateway)",
        ),
        case(54, "errors", refusal(500, {"errors": [{"message": "odd"}]}), f"odd {SERVER_ERROR}"),
        case(
            54,
            "last-event",
            [stream_ended({"type": DELTA, "delta": "Fed"})],
            "The stream ended before a terminal event.",
        ),
        case(
            54,
            "last-error",
            [stream_ended({"error": {"message": "odd", "code": 500}})],
            f"odd {SERVER_ERROR}",
        ),
        case(
            54,
            "echo",
            [{"type": "response.failed", "response": failed("odd") | {"output": ECHO}}],
            "odd",
        ),
    ],
)
def test_the_reason_of_a_failure_is_short_and_without_markup(
    runtime: Endpoint, failure: Any, reason: str
) -> None:
    config = {"agent.max-tool-turns": 0}
    assert failed_on(runtime, failure, failure, **config) == f"The answer request failed: {reason}"


# --- Nothing goes out that a provider would refuse


@pytest.mark.parametrize("length", [64, 65, 500])
def test_case_42_an_id_that_is_too_long_is_replaced(length: int) -> None:
    call = {**GOOD_CALL, "call_id": "c" * length}
    session = run_scripted(response(call, GOOD_CALL), response(), ANSWER)
    sent = session.evidence()[0]["call_id"]
    assert (sent == call["call_id"]) is (length <= 64)
    assert len(sent) <= 64


@pytest.mark.parametrize("arguments", [{"query": "q" * 5_000}, {"query": "q" * 3_000_000}])
def test_case_43_a_call_with_too_long_arguments_is_not_run(arguments: JSONObject) -> None:
    call = function_call("web_search", "long", **arguments)
    session = run_scripted(response(call, GOOD_CALL), response(), ANSWER)
    assert [call["call_id"] for call in session.called] == ["good"]
    assert session.evidence()[0]["arguments"] == "{}"
    assert "at most 4000 characters" in session.outputs()[0]["error"]


@pytest.mark.parametrize("length", [MAX_ITEM_CHARS * 2, 3_000_000])
def test_case_43_a_draft_that_is_too_long_is_cut(length: int) -> None:
    draft = assistant_message("d" * length)
    session = run_scripted(response(draft, GOOD_CALL), response(), ANSWER)
    assert len(session.evidence()[0]["content"]) <= MAX_ITEM_CHARS
    assert f"the whole has {length} characters" in session.evidence()[0]["content"]


def test_case_43_all_that_a_request_carries_counts_as_evidence() -> None:
    long = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r" * 150_000}]}
    turns = [response({**long, "id": f"r{n}"}, {**GOOD_CALL, "call_id": f"c{n}"}) for n in range(3)]
    session = run_scripted(*turns, ANSWER, config={"agent.max-tool-turns": 10})
    assert size(session.evidence()) <= MAX_EVIDENCE_CHARS
    assert len(session.called) == 2


def test_case_43_calls_without_end_are_left_out_with_what_they_would_need() -> None:
    calls = [function_call("web_search", f"c{n}", query="q" * 100) for n in range(3_000)]
    session = run_scripted(response(*calls), response(), ANSWER)
    assert size(session.evidence()) <= MAX_EVIDENCE_CHARS
    assert len(session.outputs()) > 40


def test_case_56_a_turn_that_is_too_large_is_told(runtime: Endpoint) -> None:
    reasoning = REASONING | {"encrypted_content": "e" * MAX_EVIDENCE_CHARS}
    session = run_on(runtime, response(reasoning, GOOD_CALL), TEXT)
    assert "The research ended at its limit for evidence." in drawn_text(session.emitted)


@pytest.mark.parametrize("more", [{"role": "assistant"}, {"output": 5}, {"content": None}])
def test_a_call_with_fields_of_other_items_is_a_call(runtime: Endpoint, more: JSONObject) -> None:
    answer = list(text_events(["See https://a.example."]))
    session = run_on(runtime, response(GOOD_CALL | more), TOO_LONG, response(), answer)
    assert session.answers() == ["See https://a.example."]
    assert len(session.called) == 1


def test_a_draft_with_fields_of_a_call_is_a_draft(runtime: Endpoint) -> None:
    draft = assistant_message("A draft.") | {"arguments": "{"}
    session = run_on(runtime, response(draft, GOOD_CALL), response(), TEXT)
    assert session.answers() == ["Federated AI."]


def test_case_44_drafts_and_reasoning_go_on_clean() -> None:
    draft = assistant_message("a\0b\ud800c")
    thought = {**REASONING, "summary": [{"type": "summary_text", "text": "\0x\udfff"}]}
    session = run_scripted(response(thought, draft, GOOD_CALL), response(), ANSWER)
    assert session.evidence()[0]["summary"][0]["text"] == "x"
    assert session.evidence()[1] == assistant_message("abc")


# --- What is no page is no evidence


@pytest.mark.parametrize(
    "page",
    [
        case(46, "empty", ""),
        case(46, "blank", " \n\t\u3000"),
        case(46, "react", "You need to enable JavaScript to run this app."),
        case(
            46,
            "vue",
            "We're sorry but app doesn't work properly without JavaScript enabled. Enable it.",
        ),
        case(46, "challenge", "Enable JavaScript and cookies to continue"),
        case(
            46,
            "x",
            "# JavaScript is not available.\n\nWe’ve detected that JavaScript is disabled in this "
            "browser. Please switch to a supported browser to continue using x.com.",
        ),
        case(46, "ddos", "Please turn JavaScript on and reload the page. DDoS protection by X"),
        case(46, "requires", "This site requires JavaScript."),
        case(46, "german", "Bitte aktivieren Sie JavaScript, um die Seite zu sehen."),
        case(46, "french", "Veuillez activer JavaScript pour continuer."),
        case(46, "german", "Bitte aktiviere JavaScript."),
        case(46, "italian", "Per favore abilita JavaScript."),
        case(46, "spanish", "Este sitio requiere JavaScript."),
        case(46, "japanese", "JavaScriptを有効にしてください"),
        case(46, "chinese", "请启用 JavaScript 后继续。"),
        case(
            46,
            "raw-shell",
            '<!doctype html><html><head><title>App</title></head><body><div id="__next"></div>'
            '<script>var text = "lorem ipsum";</script></body></html>',
        ),
        case(46, "raw-blank", "<html><head><title>T</title></head><body></body></html>"),
        case(
            46,
            "raw-noscript",
            "<html><body><noscript>Please enable JavaScript.</noscript></body></html>",
        ),
        case(46, "unclosed-script", "<html><body><script>" + "<script>" * 10_000),
    ],
)
def test_a_page_without_readable_text_becomes_an_error_output(page: str) -> None:
    assert "no readable text" in json.loads(sent_output(output_of(page)))["error"]


@pytest.mark.parametrize(
    "page",
    [
        case(46, "short", "OK 42"),
        case(46, "one-word", "Moved"),
        case(
            46,
            "about-javascript",
            "JavaScript was created in 1995. JavaScript is a language of the web.",
        ),
        case(
            46,
            "long-with-a-hint",
            "Federated AI trains where the data is. " * 30 + "Please enable JavaScript.",
        ),
        case(46, "raw-with-text", "<html><body><p>Version 1.2 is out.</p></body></html>"),
        case(46, "about-html", "The <script> element holds code."),
    ],
)
def test_a_short_page_is_still_a_page(page: str) -> None:
    assert json.loads(sent_output(output_of(page))) == {"content": page}


def test_case_46_a_page_whose_content_is_null_becomes_an_error_output() -> None:
    output = sent_output(lambda call: {**page_for(call), "output": '{"content": null}'})
    assert "no readable text" in json.loads(output)["error"]


def test_case_46_a_blank_output_that_is_no_json_becomes_an_error_output() -> None:
    assert "error" in json.loads(sent_output(lambda call: {**page_for(call), "output": " "}))


def test_case_14_the_error_output_of_a_pdf_says_where_to_look() -> None:
    error = json.loads(sent_output(output_of("%PDF-1.7\n1 0 obj")))["error"]
    assert "web page" in error
    assert "/abs/ or /html/ in place of /pdf/" in error


CHINESE = "联邦学习在数据所在之处训练模型，充满希望。" * 20
GERMAN = "Der schöne Größenwahn über Äpfel – „Zitat“ à la carte."
JAPANESE = "連合学習はデータのある場所でモデルを訓練する。" * 10
RUSSIAN = "Федеративное обучение — это подход к обучению моделей."


@pytest.mark.parametrize(
    "text",
    [
        case(47, "chinese", CHINESE),
        case(47, "german", GERMAN),
        case(47, "russian", RUSSIAN),
        case(47, "emoji", "Federated 🌼 AI"),
    ],
)
def test_utf_8_that_was_read_as_latin_1_is_repaired(text: str) -> None:
    misread = text.encode().decode("latin-1")
    assert json.loads(sent_output(output_of(misread))) == {"content": text}


@pytest.mark.parametrize("lost", ["\x85", "\xa0", "\xad"])
def test_case_47_what_lost_bytes_on_the_way_is_never_called_a_binary(lost: str) -> None:
    misread = CHINESE.encode().decode("latin-1").replace(lost, " ")
    assert "数据所在之处" in json.loads(sent_output(output_of(misread)))["content"]


@pytest.mark.parametrize(
    ("text", "charset"),
    [
        case(47, "chinese", CHINESE, "gbk"),
        case(47, "chinese-utf-8", CHINESE, "utf-8"),
        case(47, "japanese", JAPANESE, "euc-jp"),
        case(47, "japanese-windows", JAPANESE, "cp932"),
        case(47, "russian", RUSSIAN * 5, "cp1251"),
        case(47, "arabic", "التعلم الموحد يدرب النموذج حيث توجد البيانات. " * 5, "utf-8"),
    ],
)
def test_what_no_repair_brings_back_becomes_an_error_output(text: str, charset: str) -> None:
    misread = text.encode(charset).decode("latin-1")
    # `web_fetch` of Flower 1.35.0 loses these on the way, in trafilatura.
    extracted = re.sub("[\x7f-\x9f]", "", misread)
    error = json.loads(sent_output(output_of(extracted)))["error"]
    assert "wrong character encoding" in error


@pytest.mark.parametrize(
    "text",
    [
        case(47, "icelandic", "Það er ætlunin að þú hlýðir á mig; öll börn fæðast frjáls. " * 5),
        case(47, "french", "Le thé\xa0», dit-il à Zoë, était déjà prêt — café, crème, été."),
        case(47, "german", GERMAN),
        case(47, "chinese", CHINESE),
        case(47, "signs", "± 5 °C × 2 µm ¼ ½ «a» © ®"),
    ],
)
def test_a_text_that_was_read_well_stays_as_it_is(text: str) -> None:
    assert json.loads(sent_output(output_of(text))) == {"content": text}


# --- Calls


@pytest.mark.parametrize(
    "says",
    [
        case(
            48, "search", "Connector 'web_search' failed: brave web search request failed: 429 {}"
        ),
        case(48, "fetch", "Connector 'web_fetch' failed: Web fetch provider request failed: 429 x"),
        case(48, "words", "Connector 'web_search' failed: Too Many Requests"),
        case(48, "ratelimit", "Connector 'web_search' failed: RATE_LIMITED"),
    ],
)
def test_a_call_that_came_too_soon_is_run_once_more(says: str) -> None:
    tries: list[str] = []

    def connector(call: JSONObject) -> JSONObject:
        tries.append(call["call_id"])
        if tries.count(call["call_id"]) == 1 or call["call_id"] == "never":
            raise RuntimeError(says)
        return page_for(call)

    calls = [GOOD_CALL, {**GOOD_CALL, "call_id": "never"}]
    session = run_scripted(response(*calls), response(), ANSWER, connector=connector)
    good, never = session.outputs()
    assert "content" in good
    assert never == {"error": says}
    assert sorted(tries) == ["good", "good", "never", "never"]


def test_case_48_a_call_is_not_run_again_when_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []

    def connector(_call: JSONObject) -> JSONObject:
        threads.append(threading.current_thread())
        raise RuntimeError("429")

    monkeypatch.setattr(agent_app, "RETRY_PAUSE_SECONDS", 1.2)
    session = run_scripted(
        response(GOOD_CALL), ANSWER, connector=connector, config={"agent.max-research-seconds": 1}
    )
    threads[0].join()
    assert len(session.called) == 1


def test_each_line_of_the_log_is_written_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=written.append, flush=lambda: None))
    run_scripted(response(GOOD_CALL), response(), ANSWER)
    assert f"web_search: {json.loads(GOOD_CALL['arguments'])['query']}\n" in written


@pytest.mark.parametrize(
    "says", ["404 for a page with 429 words", "Connector 'web_fetch' failed: 503 try 429"]
)
def test_case_48_another_failure_is_not_run_again(says: str) -> None:
    def connector(_call: JSONObject) -> JSONObject:
        raise RuntimeError(says)

    session = run_scripted(response(GOOD_CALL), response(), ANSWER, connector=connector)
    assert len(session.called) == 1


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        case(50, "user", "https://me:SECRET@a.example/page", "https://a.example/page"),
        case(50, "fragment", "https://a.example/page#SECRET", "https://a.example/page"),
        case(50, "query", "https://a.example/page?k=SECRET#SECRET", "https://a.example/page?..."),
        case(50, "escaped", "https://a.example/?q=a%20b&k=SECRET", "https://a.example/?..."),
        case(50, "root", "https://SECRET@a.example#SECRET", "https://a.example"),
    ],
)
def test_addresses_are_shown_without_their_secret_parts(
    address: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def connector(_call: JSONObject) -> JSONObject:
        raise RuntimeError(f"404 for {address} now")

    fetch = function_call("web_fetch", "f", url=address)
    session = run_scripted(response(fetch), response(), ANSWER, connector=connector)
    assert session.outputs() == [{"error": f"404 for {shown} now"}]
    log = capsys.readouterr().out
    assert f"web_fetch: {shown}\n" in log
    assert "SECRET" not in log


def test_case_50_other_words_keep_their_signs(capsys: pytest.CaptureFixture[str]) -> None:
    run_scripted(
        response(function_call("web_search", "s", query="C# or F# #1?")), response(), ANSWER
    )
    assert "web_search: C# or F# #1?\n" in capsys.readouterr().out


# --- The client gets events that it can draw


def end(kind: str, **held: Any) -> JSONObject:
    """Return an event that ends a reply."""
    return {"type": f"response.{kind}", "response": response(**held)}


def answered(runtime: Endpoint, *replies: Any) -> ScriptedSession:
    """Run `main` without research on an endpoint that makes these replies."""
    session = run_on(runtime, *replies, config={"agent.max-tool-turns": 0})
    assert session.answers() == [without_note(drawn_text(session.emitted))]
    return session


@pytest.mark.parametrize("kind", ["completed", "incomplete"])
@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_case_51_the_status_of_the_response_counts(
    runtime: Endpoint, kind: str, status: str
) -> None:
    session = answered(runtime, [*TEXT[:-1], end(kind, status=status)])
    assert session.emitted[-1]["type"] == f"response.{status}"
    assert stored(session.context)[-1]["status"] == status


@pytest.mark.parametrize("kind", ["completed", "incomplete"])
@pytest.mark.parametrize(
    "held",
    [
        case(51, "failed", failed("overloaded")),
        case(51, "cancelled", response(status="cancelled") | {"error": {"message": "overloaded"}}),
        case(51, "error", response() | {"error": {"message": "overloaded"}}),
    ],
)
def test_a_failed_response_fails_in_any_event(runtime: Endpoint, kind: str, held: Any) -> None:
    odd = [*TEXT[:-1], {"type": f"response.{kind}", "response": held}]
    assert "overloaded" in failed_on(runtime, odd, **{"agent.max-tool-turns": 0})


@pytest.mark.parametrize("delta", [None, ..., 5, [], {"text": "x"}, ""])
@pytest.mark.parametrize(
    "kind", [DELTA, "response.refusal.delta", "response.reasoning_summary_text.delta"]
)
def test_case_52_a_delta_that_is_no_text_is_not_passed_on(
    runtime: Endpoint, kind: str, delta: Any
) -> None:
    odd = {"type": kind, "delta": delta}
    if delta is ...:
        del odd["delta"]
    session = answered(runtime, [TEXT[0], odd, *TEXT[1:]])
    assert odd not in session.emitted
    assert session.answers() == ["Federated AI."]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_refusal_has_no_note_about_its_links(runtime: Endpoint, streamed: bool) -> None:
    says = "I can't; see https://a.example/policy"
    refused = response(message("assistant", [{"type": "refusal", "refusal": says}]))
    deltas = [{"type": "response.refusal.delta", "delta": says}] if streamed else []
    session = answered(runtime, [*deltas, {"type": "response.completed", "response": refused}])
    assert drawn_text(session.emitted) == says


def messages_in_parts(how: str, *phases: str | None) -> list[JSONObject]:
    """Return the events of a reply with a message for each phase, told apart in this way."""
    events: list[JSONObject] = [TEXT[0]]
    items = []
    for place, phase in enumerate(phases):
        name = {"item_id": f"msg_{place}"} if how == "named" else {}
        number = {"output_index": place} if how == "numbered" else {}
        item = assistant_message(f"Message {place}.") | ({"phase": phase} if phase else {})
        added = {**item, "content": [], "id": f"msg_{place}"}
        events.append({"type": "response.output_item.added", "item": added, **number})
        events += [
            {"type": DELTA, "delta": piece, **name, **number} for piece in ("Message ", f"{place}.")
        ]
        events.append({"type": "response.output_item.done", "item": item, **number})
        items.append(item)
    return [*events, {"type": "response.completed", "response": response(*items)}]


@pytest.mark.parametrize("how", ["named", "numbered", "neither"])
def test_case_53_a_blank_line_stands_between_messages(
    runtime: Endpoint, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    session = answered(runtime, messages_in_parts(how, None, None))
    assert session.answers() == ["Message 0.\n\nMessage 1."]
    assert capsys.readouterr().out == "Message 0.\n\nMessage 1.\n"
    [last] = session.emitted[-1]["response"]["output"]
    assert last["content"][0]["text"] == "Message 0.\n\nMessage 1."


@pytest.mark.parametrize("how", ["named", "numbered", "neither"])
def test_case_53_commentary_is_no_part_of_the_answer(runtime: Endpoint, how: str) -> None:
    session = answered(runtime, messages_in_parts(how, "commentary", "final_answer"))
    assert session.answers() == ["Message 1."]
    assert "Message 0." not in json.dumps(session.emitted)


def test_case_53_messages_that_come_at_the_end_alone_are_read_likewise(runtime: Endpoint) -> None:
    events = messages_in_parts("numbered", "commentary", "final_answer", None)
    assert answered(runtime, [events[0], events[-1]]).answers() == ["Message 1.\n\nMessage 2."]


def test_case_53_reasoning_between_two_deltas_makes_no_new_message(runtime: Endpoint) -> None:
    reasoning = {"type": "response.output_item.added", "item": {"type": "reasoning"}}
    first, second = (
        {"type": DELTA, "output_index": 0, "delta": text} for text in ("Fede", "rated")
    )
    session = run_on(runtime, response(), [first, reasoning, second, end("completed")])
    assert session.answers() == ["Federated"]


def test_case_53_ids_that_change_with_each_event_make_no_new_message(runtime: Endpoint) -> None:
    deltas = [
        {"type": DELTA, "delta": f"{n} ", "item_id": f"random_{n}", "output_index": 0}
        for n in range(3)
    ]
    assert answered(runtime, [TEXT[0], *deltas, end("completed")]).answers() == ["0 1 2 "]


def test_deltas_are_shown_and_stored_clean(runtime: Endpoint) -> None:
    odd = {"type": DELTA, "delta": "a\0\ud800b"}
    assert answered(runtime, [TEXT[0], odd, end("completed")]).answers() == ["ab"]
