"""The offline stand-ins: a few pages, search and fetch over them, a model that picks sentences."""

import json
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from local.services import (
    JSONObject,
    Reply,
    assistant_message,
    function_call,
    response,
    text_events,
)

HITS = 5
PAGES_TO_FETCH = 2
SENTENCES_PER_PAGE = 2
SECONDS_PER_WORD = 0.02


class Page(NamedTuple):
    """A page of the stand-in web."""

    url: str
    title: str
    text: str


PAGES = (
    Page(
        "https://federated.example/what-is-federated-ai",
        "What is federated AI?",
        "Federated AI trains and runs models where the data lives, instead of collecting the data "
        "in one place. A coordinating server sends a model to the participants, each improves it "
        "on its own data, and only model updates travel back to be combined. The best-known form "
        "is federated learning, in which the server averages the updates of many participants "
        "round after round. Hospitals, banks and phones use it where data may not or cannot move.",
    ),
    Page(
        "https://federated.example/federated-and-centralised",
        "Federated and centralised training compared",
        "Centralised training copies all data to one data centre; federated AI moves the model to "
        "the data instead. Centralised training is simpler to debug, because everything can be "
        "looked at in one place. Federated training reaches data that nobody could have collected, "
        "at the price of more communication and of participants that drop out. On data that is "
        "spread evenly the two reach much the same accuracy; on uneven data the federated model "
        "needs more rounds or a personal part for each participant.",
    ),
    Page(
        "https://privacy.example/federated-privacy",
        "Does federated AI protect privacy?",
        "Federated AI keeps raw data with its owner, but model updates can still reveal something "
        "about the data that they were computed on. Secure aggregation lets the server see only "
        "the sum of many updates and none of them alone. Differential privacy adds noise, so that "
        "no single person's record changes the model in a way that can be noticed. The two are "
        "often used together, since each covers what the other leaves open.",
    ),
    Page(
        "https://systems.example/cross-device-cross-silo",
        "Cross-device and cross-silo federations",
        "A cross-device federation has up to millions of phones, each with little data and an "
        "unreliable connection. A cross-silo federation has a handful of organisations, each with "
        "a data centre and a contract. Cross-device systems sample a few hundred participants a "
        "round and expect many to vanish; cross-silo systems expect all of them to stay.",
    ),
    Page(
        "https://agents.example/federated-agents",
        "Agents in a federation",
        "An agent in a federation plans with a language model and acts through connectors that "
        "the federation allows. Its tools should be the few that its task needs, and its limits "
        "finite. What a page or a tool returns is data for the agent, never an order to it.",
    ),
)


def words(text: str) -> set[str]:
    """Return the words of a text that say what it is about."""
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 3}


def stand_in_search(request: JSONObject) -> Reply:
    """Return the pages that share the most words with the query, best first."""
    asked = words(request["query"])
    ranked = sorted(PAGES, key=lambda page: -len(asked & words(f"{page.title} {page.text}")))
    hits = [
        {"title": page.title, "url": page.url, "snippet": page.text.partition(". ")[0] + "."}
        for page in ranked[:HITS]
    ]
    return {"results": hits}


def stand_in_fetch(request: JSONObject) -> Reply:
    """Return a page of the stand-in web, or 404 for any other address."""
    for page in PAGES:
        if page.url == request["url"]:
            return {"url": page.url, "title": page.title, "content": page.text}
    return 404, {"error": "The offline stand-in has no such page."}


def stand_in_model(request: JSONObject) -> Reply:
    """Search for the question, fetch the best hits in one turn, answer from their sentences."""
    question = next(
        item["content"] for item in reversed(request["input"]) if item.get("role") == "user"
    )
    results = tool_results(request["input"])
    if request.get("stream"):
        return text_events(paced(picked_sentences(question, results)))
    if not results:
        return response(function_call("web_search", "search", query=question))
    hits = results[0][2].get("results", [])
    if len(results) == 1 and hits:
        urls = [hit["url"] for hit in hits[:PAGES_TO_FETCH]]
        return response(
            *(function_call("web_fetch", f"fetch_{n}", url=url) for n, url in enumerate(urls))
        )
    return response(assistant_message("The evidence is in hand."))


def tool_results(items: list[JSONObject]) -> list[tuple[str, str, JSONObject]]:
    """Return each call's tool, its query or address, and what it gave."""
    outputs = {item["call_id"]: item["output"] for item in items if "output" in item}
    results = []
    for item in items:
        if item["type"] == "function_call":
            subject = next(iter(json.loads(item["arguments"]).values()))
            results.append((item["name"], subject, output_value(outputs[item["call_id"]])))
    return results


def output_value(output: str) -> JSONObject:
    """Return a tool's output as an object, also where it was cut and is no JSON any more."""
    try:
        value = json.loads(output)
    except ValueError:
        value = output
    return value if isinstance(value, dict) else {"content": str(value)}


def picked_sentences(question: str, results: list[tuple[str, str, JSONObject]]) -> str:
    """Return the sentences of the fetched pages that fit the question best, each with its link."""
    lines = ["I'm an offline stand-in, not a language model: I pick sentences from pages.", ""]
    for tool, subject, value in results:
        if "error" in value:
            lines.append(f"- Couldn't be reached: {tool} {subject} ({value['error']})")
        elif tool == "web_fetch":
            lines += [
                f"- {sentence} [{value.get('title') or subject}]({subject})"
                for sentence in best_sentences(question, str(value.get("content", "")))
            ]
    if len(lines) == 2:
        lines.append("I found no page that fits the question.")
    return "\n".join(lines)


def best_sentences(question: str, text: str) -> list[str]:
    """Return the sentences that share the most words with the question, in the text's order."""
    asked = words(question)
    sentences = re.split(r"(?<=[.!?])\s+", text.strip())
    best = sorted(sentences, key=lambda sentence: -len(asked & words(sentence)))
    return [sentence for sentence in sentences if sentence in best[:SENTENCES_PER_PAGE]]


def paced(text: str) -> Iterator[str]:
    """Yield a text word by word, about as fast as a model writes."""
    for word in re.findall(r"\S+\s*", text):
        time.sleep(SECONDS_PER_WORD)
        yield word
