"""Which services are real, and the search that needs no key."""

import sys
import threading
import time

import pytest
from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

from local import __main__ as local
from local import choice, search
from local.choice import KEYLESS, STAND_IN, chosen_services, ollama_address
from local.search import keyless_search
from local.services import JSONObject, Reply, services, text_events
from local.stand_ins import stand_in_fetch, stand_in_search
from local.superlink import free_ports

ENDPOINTS = ("FLWR_MODEL_API_ENDPOINT", "FLWR_WEB_SEARCH_ENDPOINT", "FLWR_WEB_FETCH_ENDPOINT")
MODEL, SEARCH, FETCH = ENDPOINTS
OFFERED = f"{STAND_IN} (a real one: --group local)"


def install(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let these packages be installed, and no others."""
    monkeypatch.setattr(choice, "find_spec", lambda name: name in names or None)


@pytest.mark.parametrize(
    ("environ", "replaced", "kinds"),
    [
        pytest.param({}, set(), {}, id="nothing-set-up"),
        pytest.param({"BRAVE_API_KEY": "  "}, set(), {}, id="blank-key"),
        pytest.param(
            {"FLWR_MODEL_API_KEY": "k"},
            {MODEL},
            {"model": "Flower's endpoint", "search": OFFERED},
            id="flower-key",
        ),
        pytest.param(
            {MODEL: "http://127.0.0.1:1/v1/responses"},
            {MODEL},
            {"model": "http://127.0.0.1:1/v1/responses", "search": OFFERED},
            id="model-endpoint",
        ),
        *(
            pytest.param({key: "k"}, {SEARCH}, {"search": "real", "fetch": OFFERED}, id=key)
            for key in ("BRAVE_API_KEY", "TAVILY_API_KEY", "EXA_API_KEY")
        ),
        pytest.param(
            {SEARCH: "x", FETCH: "y"},
            {SEARCH, FETCH},
            {"search": "real", "fetch": "real"},
            id="endpoints",
        ),
    ],
)
def test_what_is_set_up_is_used_and_the_rest_has_a_stand_in(
    environ: dict[str, str],
    replaced: set[str],
    kinds: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch)
    endpoints, chosen = chosen_services(environ, None)
    assert endpoints == dict.fromkeys(set(ENDPOINTS) - replaced)
    assert chosen == {"model": STAND_IN, "search": STAND_IN, "fetch": STAND_IN} | kinds


def test_a_real_search_with_trafilatura_makes_the_fetch_real(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "trafilatura")
    endpoints, chosen = chosen_services({"BRAVE_API_KEY": "k"}, None)
    assert chosen["fetch"] == "real"
    assert FETCH not in endpoints


def test_beside_a_real_model_the_group_makes_the_web_real_without_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "ddgs", "trafilatura")
    endpoints, chosen = chosen_services({"FLWR_MODEL_API_KEY": "k"}, None)
    assert chosen == {"model": "Flower's endpoint", "search": KEYLESS, "fetch": "real"}
    assert endpoints == {SEARCH: None}


def test_beside_a_stand_in_for_the_model_the_web_stays_one_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "ddgs", "trafilatura")
    endpoints, chosen = chosen_services({}, None)
    assert chosen == {"model": STAND_IN, "search": STAND_IN, "fetch": STAND_IN}
    assert endpoints == dict.fromkeys(ENDPOINTS)


# --- Ollama


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://127.0.0.1:11434"),
        ("127.0.0.1:11435", "http://127.0.0.1:11435"),
        ("ollama.example", "http://ollama.example:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        (" 0.0.0.0:80 ", "http://127.0.0.1:80"),
        (":8080", "http://127.0.0.1:8080"),
        ("[::]:1234", "http://[::1]:1234"),
        ("http://ollama.example", "http://ollama.example:80"),
        ("https://ollama.example", "https://ollama.example:443"),
        ("https://ollama.example:11434/behind/", "https://ollama.example:11434/behind"),
    ],
)
def test_ollama_host_is_read_as_ollama_reads_it(host: str, address: str) -> None:
    assert ollama_address(host) == address


@pytest.mark.parametrize("host", ["127.0.0.1:x", "127.0.0.1:70000", "http://[::1"])
def test_an_ollama_host_that_is_no_address_is_named(host: str) -> None:
    with pytest.raises(ValueError, match="OLLAMA_HOST must be HOST, HOST:PORT or a URL, not"):
        ollama_address(host)


def test_a_named_model_without_ollama_is_told_so() -> None:
    [port] = free_ports(1)
    endpoints, chosen = chosen_services({"OLLAMA_HOST": f":{port}"}, "llama3.2")
    assert endpoints == dict.fromkeys(ENDPOINTS)
    assert chosen["model"] == f"{STAND_IN} (no Ollama at http://127.0.0.1:{port})"


def test_a_named_model_is_asked_for_on_ollama(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[JSONObject] = []

    def ollama(request: JSONObject) -> Reply:
        requests.append(request)
        return text_events(["Ollama ", "says so."])

    monkeypatch.setattr(sys, "stdin", None)
    for key in choice.MODEL_KEYS:
        monkeypatch.delenv(key, raising=False)
    with services(ollama, stand_in_search, stand_in_fetch) as environment:
        address = environment[MODEL].removesuffix("/v1/responses")
        monkeypatch.setenv("OLLAMA_HOST", address)
        local.main("Who says so?", model="llama3.2", max_tool_turns=0)
    shown = capsys.readouterr()
    assert f"model: llama3.2 on Ollama at {address}" in shown.err
    assert shown.out == "Ollama says so.\n"
    assert [request["model"] for request in requests] == ["llama3.2"]


# --- The search without a key


def test_hits_have_the_form_of_flowers_search_service(monkeypatch: pytest.MonkeyPatch) -> None:
    hit = {"title": "A page", "href": "https://page.example", "body": "What it says."}
    monkeypatch.setattr(search, "found", lambda query: [hit] if query == "federated AI" else [])
    assert keyless_search()({"query": "federated AI"}) == {
        "results": [{"title": "A page", "url": "https://page.example", "snippet": "What it says."}]
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RatelimitException("slow down"), 429),
        (TimeoutException("timed out"), 504),
        (DDGSException("No results found."), 502),
    ],
)
def test_a_failure_is_the_services_error(
    error: DDGSException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_query: str) -> list[dict[str, str]]:
        raise error

    monkeypatch.setattr(search, "found", fails)
    assert keyless_search()({"query": "q"}) == (status, {"error": f"ddgs: {error}"})


def test_without_a_network_the_search_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [port] = free_ports(1)
    monkeypatch.setenv("DDGS_PROXY", f"http://127.0.0.1:{port}")
    reply = keyless_search()({"query": "federated AI"})
    assert isinstance(reply, tuple)
    status, body = reply
    assert status == 502
    assert isinstance(body, dict)
    assert "Connection refused" in body["error"]


def test_queries_that_come_at_once_are_asked_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def found(_query: str) -> list[dict[str, str]]:
        asked.append(time.monotonic())
        return []

    monkeypatch.setattr(search, "SECONDS_PER_QUERY", 0.2)
    monkeypatch.setattr(search, "found", found)
    paced = keyless_search()
    threads = [threading.Thread(target=paced, args=[{"query": "q"}]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second, third = asked
    assert second - first > 0.19
    assert third - second > 0.19
