"""What holds for whoever follows the tutorial, with the fakes that one writes oneself.

Here is no Runtime and no scripted session: a session is an object with `responses` and
`connectors`, and the `Context` is Flower's own.
"""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.agentapp import AgentApp
from flwr.app import ConfigRecord, Context, RecordDict

from research_agent import agent_app

JSONObject = dict[str, Any]

SAYS = {"type": "message", "role": "assistant", "content": "Where the data is."}
SEARCH = {
    "type": "function_call",
    "call_id": "a",
    "name": "web_search",
    "arguments": '{"query": "federated AI"}',
}


class Responses:
    """A model that makes its replies in turn."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.requests: list[JSONObject] = []

    def create(self, request: JSONObject) -> Any:
        """Give the next reply, or raise it."""
        self.requests.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


class Connectors:
    """Two tools whose every call gives the same output."""

    def __init__(self, output: str = '{"results": []}') -> None:
        self.output = output

    def tools(self, names: Any) -> list[JSONObject]:
        """Give a schema for each name."""
        return [{"type": "function", "name": name} for name in names]

    def call(self, tool_call: JSONObject) -> JSONObject:
        """Give the output of a call."""
        return {
            "type": "function_call_output",
            "call_id": tool_call["call_id"],
            "output": self.output,
        }


def session(*replies: Any, connectors: Any = None) -> Any:
    """Return a session with a model that makes these replies."""
    return SimpleNamespace(
        responses=Responses(*replies), connectors=connectors or Connectors(), called=[]
    )


def context(*items: Any, **config: Any) -> Context:
    """Return a Context whose run series holds these items."""
    state = RecordDict()
    if items:
        state["items"] = ConfigRecord({"json": [json.dumps(item) for item in items]})
    return Context(1, 1, {}, state, {"agent.input": "What is federated AI?"} | config, 1)


def user(text: Any) -> JSONObject:
    """Return a user's message."""
    return {"type": "message", "role": "user", "content": text}


def stored(held: Context) -> list[JSONObject]:
    """Return the items of the run series."""
    record: Any = held.state.config_records["items"]
    return [json.loads(item) for item in record["json"]]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once."""
    monkeypatch.setattr(agent_app, "RETRY_PAUSE_SECONDS", 0.0)


# --- A run


def test_a_session_with_responses_and_connectors_alone_is_enough(
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent, held = session({"output": [SEARCH]}, {"output": []}, {"output": [SAYS]}), context()
    agent_app.main(agent, held)
    first, second, last = agent.responses.requests
    question = user("What is federated AI?")
    output = {"type": "function_call_output", "call_id": "a", "output": '{"results": []}'}
    assert first["input"] == [question]
    assert second["input"] == [question, SEARCH, output]
    assert last["input"] == [question, SEARCH, output]
    assert "tools" not in last
    assert capsys.readouterr().out.endswith("Where the data is.\n")
    assert [agent_app.message_text(item["content"]) for item in stored(held)] == [
        "What is federated AI?",
        "Where the data is.",
    ]


def test_the_app_runs_main() -> None:
    assert isinstance(agent_app.app, AgentApp)
    agent = session({"output": []}, {"output": [SAYS]})
    agent_app.app(agent, context())
    assert agent.responses.replies == []


@pytest.mark.parametrize("last", [{}, None, {"output": []}])
def test_a_host_that_shows_the_answer_by_itself_may_return_nothing(last: Any) -> None:
    agent, held = session({"output": []}, last), context()
    agent_app.main(agent, held)
    assert agent.responses.replies == []
    assert stored(held) == [user("What is federated AI?")]


@pytest.mark.parametrize(
    "exc", [ConnectionError("no route"), KeyError("model"), ValueError("odd"), TypeError("none")]
)
def test_a_failure_keeps_its_type_and_its_text(exc: Exception) -> None:
    agent = session({"output": []}, exc, exc)
    with pytest.raises(type(exc)) as raised:
        agent_app.main(agent, context())
    assert raised.value is exc


def test_a_reply_that_failed_gives_its_reason() -> None:
    failed = {"status": "failed", "error": {"message": "no such model"}, "output": []}
    with pytest.raises(RuntimeError, match="no such model"):
        agent_app.main(session({"output": []}, failed, failed), context())


def test_a_failure_is_shown_without_the_secret_parts_of_addresses() -> None:
    events: list[JSONObject] = []
    down = RuntimeError("down: https://me:word@model.example/v1?key=1")
    agent = session({"output": []}, down, down)
    agent.events = SimpleNamespace(emit=events.append)
    with pytest.raises(RuntimeError, match="key=1"):
        agent_app.main(agent, context())
    assert [event["message"] for event in events] == ["down: https://model.example/v1?..."]


def test_the_note_gives_a_reason_in_one_short_line() -> None:
    down, held = RuntimeError("down\n\n" + "x" * 3_000), context()
    agent_app.main(session(down, down, {"output": [SAYS]}), held)
    _, _, note = agent_app.message_text(stored(held)[-1]["content"]).partition("model:\n")
    assert note.startswith("- The research ended early. down xxx")
    assert len(note) < 1_000
    assert "\n" not in note


def test_a_failure_to_tell_about_a_failure_does_not_replace_it() -> None:
    def emit(_event: JSONObject) -> None:
        raise LookupError("nobody listens")

    agent = session({"output": []}, OSError("down"), OSError("down"))
    agent.events = SimpleNamespace(emit=emit)
    with pytest.raises(OSError, match="down"):
        agent_app.main(agent, context())


@pytest.mark.parametrize("value", [..., "", "  ", "\0", "\ud800 ", None, 5])
def test_the_input_is_checked_before_the_session_is_touched(value: Any) -> None:
    held = context(**{"agent.input": value})
    if value is ...:
        del held.run_config["agent.input"]
    with pytest.raises(ValueError, match=r"agent\.input must be a text that isn't blank"):
        agent_app.main(SimpleNamespace(), held)  # type: ignore[arg-type]


def test_a_tool_schema_without_a_name_offers_nothing() -> None:
    class Nameless(Connectors):
        """Connectors, one of whose schemas has no name."""

        def tools(self, names: Any) -> Any:
            yield from [{"type": "function"}, *super().tools(names)]

    agent = session({"output": [SEARCH]}, {"output": []}, {"output": [SAYS]}, connectors=Nameless())
    agent_app.main(agent, context())
    assert len(agent.responses.requests[0]["tools"]) == 3
    assert agent.responses.requests[-1]["input"][-1]["output"] == '{"results": []}'


@pytest.mark.parametrize(
    "output", ["just text", '{"content":"compact"}', '{ "content" : "spaced" }', '["a", 1.50]']
)
def test_an_output_that_needs_no_repair_goes_on_to_the_letter(output: str) -> None:
    agent = session(
        {"output": [SEARCH]}, {"output": []}, {"output": [SAYS]}, connectors=Connectors(output)
    )
    agent_app.main(agent, context())
    assert agent.responses.requests[-1]["input"][-1]["output"] == output


# --- The conversation


def test_conversation_messages_are_the_stored_ones_and_nothing_else() -> None:
    held = context(user("hello"), {"type": "reasoning"}, SAYS, SEARCH)
    before = stored(held)
    assert agent_app.conversation_messages(held) == [user("hello"), SAYS]
    assert agent_app.conversation_messages(context()) == []
    assert stored(held) == before


def test_a_question_that_the_host_has_stored_is_asked_once() -> None:
    agent, held = (
        session({"output": []}, {"output": [SAYS]}),
        context(user("What is federated AI?")),
    )
    agent_app.main(agent, held)
    assert agent.responses.requests[0]["input"] == [user("What is federated AI?")]
    assert len(stored(held)) == 2


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        ([{"text": "without a type"}], "without a type"),
        ([{"type": "summary_text", "text": "another type"}], "another type"),
        ([{"type": "refusal", "text": "as text"}], "as text"),
        ([{"refusal": "no", "text": None}], "no"),
        ([], ""),
    ],
)
def test_parts_with_a_text_or_a_refusal_are_text(content: Any, text: str) -> None:
    assert agent_app.message_text(content) == text


@pytest.mark.parametrize(
    "content",
    [None, 5, {"text": "x"}, ["x"], [{"type": "input_image"}], [{"text": None}], [{"refusal": 5}]],
)
def test_other_contents_are_refused_by_name(content: Any) -> None:
    with pytest.raises(TypeError, match="must be text, or a list of text and refusal parts"):
        agent_app.message_text(content)


def test_a_record_without_items_holds_no_messages() -> None:
    held = context()
    held.state["items"] = ConfigRecord()
    assert agent_app.conversation_messages(held) == []
    agent_app.main(session({"output": []}, {"output": [SAYS]}), held)
    assert [item["role"] for item in stored(held)] == ["user", "assistant"]


# --- Planning and errors


@pytest.mark.parametrize("before", [[], [user("first")]])
@pytest.mark.parametrize("reply", [{"output": [SAYS]}, RuntimeError("down")])
def test_a_private_response_leaves_the_run_series_as_it_was(before: list[Any], reply: Any) -> None:
    held = context(*before)

    class Storing(Responses):
        """A model whose host stores each reply, also where the request raises."""

        def create(self, request: JSONObject) -> Any:
            record: Any = held.state.config_records.setdefault("items", ConfigRecord({"json": []}))
            record["json"].append(json.dumps(SAYS))
            return super().create(request)

    agent: Any = SimpleNamespace(responses=Storing(reply))
    request = {"model": "m", "input": [user("What?")]}
    if isinstance(reply, Exception):
        with pytest.raises(RuntimeError, match="down"):
            agent_app.private_response(agent, held, request)
    else:
        assert agent_app.private_response(agent, held, request) == reply
    assert agent.responses.requests == [request]
    assert ("items" in held.state) == bool(before)
    assert (stored(held) if before else []) == before


def test_a_connector_error_output_belongs_to_its_call() -> None:
    output = agent_app.connector_error_output(SEARCH, RuntimeError("404 not found"))
    assert output == {
        "type": "function_call_output",
        "call_id": "a",
        "output": '{"error": "404 not found"}',
    }


def test_the_constants_are_those_of_the_tutorial() -> None:
    assert agent_app.TOOL_REFS == ("web_search", "web_fetch")
    assert agent_app.MAX_TOOL_TURNS == 3
    assert agent_app.MODEL == "openai/gpt-5.6-sol"
