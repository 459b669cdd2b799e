"""A scripted AgentSession: a list gives its model's replies, a function its connectors' results."""

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from flwr.agentapp import AgentConnectors, AgentEvents, AgentResponses, AgentSession
from flwr.app import Context, RecordDict, UserConfig
from flwr.supercore.task_process.agent.context_items import append_items
from flwr.supercore.task_process.connector.registry import get_connector_tools

from local.services import JSONObject, assistant_message, response
from research_agent.agent_app import (
    MAX_EVIDENCE_CHARS,
    MAX_ITEM_CHARS,
    MAX_OUTPUT_CHARS,
    main,
    stored_items,
)
from research_agent.items import message_text, size
from research_agent.note import NOTE_OPENING

# What ends an answer for a chat client.
END_TYPES = ("error", "response.failed", "response.completed", "response.incomplete")

QUESTION = "What is federated AI?"
ANSWER = response(assistant_message("Federated AI trains where the data is."))


def page_for(tool_call: JSONObject) -> JSONObject:
    """Give each call a page that names it, as a connector of the Runtime does."""
    output = json.dumps({"content": f"page for {tool_call['arguments']}"})
    return {"type": "function_call_output", "call_id": tool_call["call_id"], "output": output}


class ScriptedSession(AgentSession, AgentResponses, AgentConnectors, AgentEvents):
    """Records every request, call and event; fails on a request too many or against the rules."""

    def __init__(
        self,
        context: Context,
        replies: Iterable[object],
        connector: Callable[[JSONObject], object] = page_for,
        emit: Callable[[JSONObject], None] | None = None,
    ) -> None:
        self.context = context
        self.replies: Iterator[object] = iter(replies)
        self.connector = connector
        self.on_emit = emit
        self.requests: list[JSONObject] = []
        self.given: list[object] = []
        self.called: list[JSONObject] = []
        self.emitted: list[JSONObject] = []

    responses = connectors = events = property(lambda self: self)

    def create(self, request: JSONObject) -> JSONObject:
        """Give the next reply, or raise it; store its output as the Runtime does."""
        check_request(request)
        self.requests.append(copy.deepcopy(request))
        reply = next(self.replies, AssertionError("a request too many"))
        self.given.append(reply)
        if isinstance(reply, BaseException):
            raise reply
        output = reply.get("output") if isinstance(reply, dict) else None
        if isinstance(output, list) and all(isinstance(item, dict) for item in output):
            append_items(self.context, output)
        return cast(JSONObject, copy.deepcopy(reply))

    def tools(self, names: Iterable[str]) -> list[JSONObject]:
        """Give the real connectors' schemas."""
        return [tool for name in names for tool in get_connector_tools(name)]

    def call(self, tool_call: JSONObject) -> JSONObject:
        """Record a call and give what the connector gives."""
        self.called.append(copy.deepcopy(tool_call))
        return cast(JSONObject, self.connector(tool_call))

    def emit(self, event: JSONObject) -> None:
        """Record an event; refuse what the Runtime refuses."""
        if not isinstance(event.get("type"), str) or not event["type"]:
            raise ValueError("Run event requires a non-empty string 'type' field.")
        json.dumps(event, allow_nan=False)
        if self.on_emit is not None:
            self.on_emit(event)
        self.emitted.append(copy.deepcopy(event))

    def evidence(self) -> list[JSONObject]:
        """Return what the last request holds besides messages of the conversation."""
        items = self.requests[-1]["input"]
        last_user = max(n for n, item in enumerate(items) if item.get("role") == "user")
        return cast(list[JSONObject], items[last_user + 1 :])

    def outputs(self) -> list[Any]:
        """Return the outputs in the last request, each as the value of its JSON text."""
        texts = [item["output"] for item in self.evidence() if "output" in item]
        return [json.loads(text) for text in texts]

    def answers(self) -> list[str]:
        """Return what the model says in the assistant's messages of the run series."""
        items = stored(self.context)
        texts = [message_text(i["content"]) for i in items if i.get("role") == "assistant"]
        return [without_note(text) for text in texts]


def run_scripted(
    *replies: object,
    items: Iterable[JSONObject] = (),
    config: UserConfig | None = None,
    **session: Any,
) -> ScriptedSession:
    """Run `main` on a scripted session; every reply must have been asked for."""
    scripted = ScriptedSession(make_context(items, **(config or {})), replies, **session)
    main(scripted, scripted.context)
    assert list(scripted.replies) == [], "a reply is left over"
    assert scripted.requests == [] or "tools" not in scripted.requests[-1]
    return scripted


def make_context(items: Iterable[JSONObject] = (), /, **config: Any) -> Context:
    """Return a Context as the Runtime hands it over: earlier items, then the stored input."""
    run_config = {"agent.input": QUESTION} | config
    context = Context(1, 1, {}, RecordDict(), run_config, 1)
    append_items(context, list(items))
    if isinstance(run_config["agent.input"], str) and run_config["agent.input"]:
        append_items(context, [message("user", run_config["agent.input"])])
    return context


def message(role: str, content: Any, **more: Any) -> JSONObject:
    """Return a message item."""
    return {"type": "message", "role": role, "content": content, **more}


def stored(context: Context) -> list[JSONObject]:
    """Return the items of the run series."""
    return [json.loads(item) for item in stored_items(context)]


def drawn_text(events: Iterable[JSONObject]) -> str:
    """Return the text that Flower's chat draws of a run's events."""
    deltas = (e.get("delta") for e in events if e["type"] == "response.output_text.delta")
    return "".join(delta for delta in deltas if isinstance(delta, str))


def without_note(text: str) -> str:
    """Return an answer as the model gave it."""
    return text.partition(NOTE_OPENING)[0]


def check_request(request: JSONObject) -> None:
    """Check what holds for every model request of every run."""
    items = request["input"]
    last_question = max(n for n, item in enumerate(items) if item.get("role") == "user")
    assert size(items[last_question + 1 :]) <= MAX_EVIDENCE_CHARS
    assert_clean(request)
    open_calls: list[str] = []
    closed_calls: list[str] = []
    for item, follower in zip(items, [*items[1:], None], strict=True):
        match item["type"]:
            case "message":
                assert item["role"] in ("user", "assistant")
                assert message_text(item["content"]).strip()
            case "reasoning":
                assert follower is not None
                assert follower["type"] in ("reasoning", "function_call", "message")
                assert follower.get("role") != "user"
            case "function_call":
                assert re.fullmatch("[!-~]{1,64}", item["call_id"])
                assert item["call_id"] not in open_calls + closed_calls
                assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", item["name"])
                assert isinstance(json.loads(item["arguments"]), dict)
                assert len(item["arguments"]) <= MAX_ITEM_CHARS
                open_calls.append(item["call_id"])
            case "function_call_output":
                open_calls.remove(item["call_id"])
                closed_calls.append(item["call_id"])
                assert isinstance(item["output"], str)
                assert len(item["output"]) <= MAX_OUTPUT_CHARS
            case other:
                raise AssertionError(f"an item of type {other}")
    assert open_calls == []
    assert ("tool_choice" in request) == ("tools" in request)


def assert_clean(value: object) -> None:
    """Check that no text of a JSON value has NUL or a lone surrogate."""
    if isinstance(value, str):
        assert "\0" not in value
        value.encode()
    elif isinstance(value, (dict, list)):
        for held in [*value, *(value.values() if isinstance(value, dict) else [])]:
            assert_clean(held)
