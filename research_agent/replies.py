"""What a model's reply says."""

from research_agent.failures import ModelError
from research_agent.texts import JSONObject

TEXT_DELTA, REFUSAL_DELTA = "response.output_text.delta", "response.refusal.delta"
COMPLETED, INCOMPLETE = "response.completed", "response.incomplete"


def event_or_failure(event: JSONObject) -> JSONObject:
    """Return an event, an end with its true type; raise ``ModelError`` where the reply failed."""
    kind, response = event.get("type"), event.get("response")
    response = response if isinstance(response, dict) else {}
    status = response.get("status")
    # Providers tell of failures in any event.
    failed = status in ("failed", "cancelled") or response.get("error")
    failed = failed or kind in ("error", "response.error", "response.failed")
    if failed or (not kind and "error" in event):
        # The rest of a response may echo what has codes of its own.
        raise ModelError({**event, "response": response.get("error")})
    if kind in (COMPLETED, INCOMPLETE) and status in ("completed", "incomplete"):
        return {**event, "type": f"response.{status}"}
    return event
