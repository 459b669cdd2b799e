"""Why a model request failed, in the words of its provider, and whether another try can help."""

import re
from http import HTTPStatus

from research_agent.texts import clean, json_text, json_value

MAX_REASON_CHARS = 300
STATUS_PHRASES = {status.value: status.phrase for status in HTTPStatus}

HTML = re.compile(r"(?i)<(!doctype|html|head|body)\b")
# This is also told in a stream, or with 200, 429 or 500. Ollama drops the question to make room.
TOO_LONG = re.compile(
    r"(?i)context.?(length|window|size)|(prompt|input)( is)? too long|request too large"
    r"|no user query"
)
ABOUT_TOOLS = re.compile(r"(?i)\btool|function.?call|call a function")


class ModelError(RuntimeError):
    """A model request that failed; `refused` where its provider will never take it as it is."""

    def __init__(self, said: object, status: int = 0) -> None:
        # Flower 1.35.0 passes on a provider's refusal with status and reply in one message.
        told = re.search(r'(?:request failed: |code\\*": ?\\*"?)([45]\d\d)\b', json_text(said))
        status = int(told[1]) if told else status
        text = reason(said)
        if len(text) > MAX_REASON_CHARS:
            text = f"{text[:MAX_REASON_CHARS]}..."
        if status >= 400 and str(status) not in text:
            named = f"{status} {STATUS_PHRASES.get(status, '')}".strip()
            text = f"{text} ({named})" if text else named
        super().__init__(text or "The model provider gave no reason.")
        # Another request helps neither a key that is wrong nor a provider that is busy.
        about_request = 400 <= status < 500 and status not in (401, 402, 403, 408, 429)
        # The templates of llama.cpp refuse calls with 500.
        about_calls = status == 500 and bool(ABOUT_TOOLS.search(text))
        self.refused = about_request or about_calls or bool(TOO_LONG.search(text))


def is_about_tools(exc: Exception) -> bool:
    # What is too long may name the tools as part of its length.
    return bool(ABOUT_TOOLS.search(str(exc))) and not TOO_LONG.search(str(exc))


def reason(said: object) -> str:
    """Return the provider's own message in a reply that failed, or the title of its page."""
    said = json_value(said)
    if isinstance(said, dict):
        keys = ("error", "errors", "metadata", "raw", "response", "message", "detail", "msg")
        said = [said.get(key) for key in keys]
    if isinstance(said, list):
        return next(filter(None, map(reason, said)), "")
    text = clean(said) if isinstance(said, str) else ""
    # How Flower 1.35.0 passes on a provider's reply, or the last event of its stream.
    passed_on = r"(?s)Model provider (?:request failed|(stream ended[^:]*)): (?:\d{3} )?(.*)"
    if found := re.fullmatch(passed_on, text):
        ended, told = found.groups()
        return reason(told) or (f"The {ended}." if ended else "")
    if page := HTML.search(text):
        title = re.search(r"<title[^<>]*>([^<]*)", text, re.I)
        text = text[: page.start()] + (title[1] if title else "")
    return " ".join(text.split())
