"""Fixtures: no waiting in scripted runs, and a SuperLink with its services for several tests."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from flwr.app import UserConfig

from local.services import JSONObject, Reply, services
from local.stand_ins import stand_in_fetch, stand_in_search
from local.superlink import (
    Run,
    SuperLink,
    run_events,
    run_log,
    run_status,
    start_run,
    stored_items,
    superlink,
)
from research_agent import agent_app
from tests.scripted import END_TYPES, QUESTION, check_request, drawn_text

TESTS_A_SUPERLINK = 8

LONG_PAGE_FACT = "Federated AI keeps the data at home."
LONG_PAGE = "Nothing of interest stands here.\n\n" * 9_000
LONG_PAGE = f"{LONG_PAGE}{LONG_PAGE_FACT}\n\n{LONG_PAGE}"


# The hook of xdist looks at the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let some of a module's tests share a SuperLink, and begin with the groups of tests."""
    shared: Counter[str] = Counter()
    for item in items:
        if isinstance(item, pytest.Function) and "bench" in item.fixturenames:
            module = item.module.__name__
            group = f"{module}-{shared[module] // TESTS_A_SUPERLINK}"
            item.add_marker(pytest.mark.xdist_group(group))
            shared[module] += 1
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scripted run try again and end at once, and keep it off a Runtime's endpoint."""
    monkeypatch.setattr(agent_app, "RETRY_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(agent_app, "EVENT_MARGIN_SECONDS", 0.0)
    monkeypatch.delenv("FLWR_RUNTIME_BASE_URL", raising=False)


@dataclass(frozen=True)
class Seen:
    """What a run that has ended has shown and left."""

    run: Run
    events: list[JSONObject]
    log: str
    status: str
    details: str
    items: list[JSONObject]

    def text(self) -> str:
        """Return the text that a chat client draws."""
        return drawn_text(self.events)

    def ends(self) -> list[str]:
        """Return the types of the events that end an answer for a chat client."""
        return [event["type"] for event in self.events if event["type"] in END_TYPES]

    def answers(self) -> list[str]:
        """Return the assistant's messages in the run series."""
        contents = [item["content"] for item in self.items if item.get("role") == "assistant"]
        return ["".join(part["text"] for part in content) for content in contents]


@dataclass
class Bench:
    """A SuperLink whose model answers each model name with the replies that a test lists for it."""

    replies: dict[str, list[Any]] = field(default_factory=dict)
    requests: dict[str, list[JSONObject]] = field(default_factory=dict)
    link: SuperLink = field(init=False)
    fetch_hangs: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)

    def model(self, request: JSONObject) -> Reply:
        """Give the next reply that is listed for the model, or what its function gives."""
        self.requests[request["model"]].append(request)
        replies = self.replies[request["model"]]
        reply: Reply = replies[0](request) if callable(replies[0]) else replies.pop(0)
        return reply

    def fetch(self, request: JSONObject) -> Reply:
        """Give a page; `down.example` fails, and `hangs.example` gives none before the end.

        The page of `long.example` is long.
        """
        if "//down.example" in request["url"]:
            return 503, {"error": "down for maintenance"}
        if "//hangs.example" in request["url"]:
            self.fetch_hangs.set()
            self.end.wait()
        if "//long.example" in request["url"]:
            return {"url": request["url"], "title": "Long", "content": LONG_PAGE}
        return stand_in_fetch(request)

    def script(self, model: str, *replies: object) -> None:
        """List the replies that a model gives from now on."""
        self.replies[model] = list(replies)
        self.requests[model] = []

    def start(
        self, model: str, *replies: object, series_id: int | None = None, **config: Any
    ) -> Run:
        """Start a run whose model gives these replies."""
        self.script(model, *replies)
        settings: UserConfig = {"agent.input": QUESTION, "agent.model": model}
        return start_run(self.link, settings | config, series_id)

    def finish(self, model: str, run: Run) -> Seen:
        """Follow a run to its end; all its replies must have been asked for, as the rules say."""
        events = list(run_events(self.link, run))
        status, details = run_status(self.link, run)
        log, items = run_log(self.link, run), stored_items(self.link, run)
        self.check(model, details)
        return Seen(run, events, log, status, details, items)

    def check(self, model: str, details: str) -> None:
        """Check that a run asked for all its replies, and as the rules say."""
        left_over = [reply for reply in self.replies[model] if not callable(reply)]
        assert left_over == [], f"a reply is left over; {details}"
        for request in self.requests[model]:
            check_request(request)
        assert "tools" not in self.requests[model][-1]

    def run(self, model: str, *replies: object, **options: Any) -> Seen:
        """Start a run and follow it to its end."""
        return self.finish(model, self.start(model, *replies, **options))


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """Give a SuperLink of this environment's Flower with the services of the tests."""
    bench = Bench()
    with (
        services(bench.model, stand_in_search, bench.fetch) as environment,
        superlink(environment) as link,
    ):
        bench.link = link
        yield bench
        bench.end.set()


class Endpoint(list[Any]):
    """The replies that an endpoint is still to make, and the requests that it has got."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[JSONObject] = []


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """Give a list of replies that the Runtime's Open Responses endpoint makes in turn."""
    replies = Endpoint()

    def model(request: JSONObject) -> Any:
        check_request(request)
        replies.requests.append(request)
        reply = replies.pop(0)
        return reply(request) if callable(reply) else reply

    with services(model, model, model) as environment:
        base_url = environment["FLWR_MODEL_API_ENDPOINT"].removesuffix("/responses")
        monkeypatch.setenv("FLWR_RUNTIME_BASE_URL", base_url)
        monkeypatch.setenv("FLWR_RUNTIME_API_KEY", "key")
        yield replies
    assert replies == [], "a reply is left over"
