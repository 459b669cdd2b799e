"""A real web search without an account: ddgs, which asks public search engines."""

import threading
from typing import Any

from ddgs import DDGS
from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

from local.services import Behaviour, JSONObject, Reply

HITS = 8
SECONDS_PER_QUERY = 1.0
STATUSES = {RatelimitException: 429, TimeoutException: 504}


def keyless_search() -> Behaviour:
    """Return a search that asks at most one query a second, however many come at once."""
    turn = threading.Lock()

    def search(request: JSONObject) -> Reply:
        turn.acquire()
        next_turn = threading.Timer(SECONDS_PER_QUERY, turn.release)
        next_turn.daemon = True
        next_turn.start()
        try:
            hits = found(request["query"])
        except DDGSException as error:
            return STATUSES.get(type(error), 502), {"error": f"ddgs: {error}"}
        return {"results": [result(hit) for hit in hits]}

    return search


def found(query: str) -> list[dict[str, Any]]:
    """Return what the search engines find; raises ``DDGSException``, also where it is nothing."""
    return DDGS().text(query, max_results=HITS)


def result(hit: dict[str, Any]) -> JSONObject:
    """Return a hit in the form of Flower's search service."""
    return {"title": hit["title"], "url": hit["href"], "snippet": hit["body"]}
