"""Clean text, JSON in and out, what must not be logged, and an exception in words."""

import json
import re
from typing import Any

JSONObject = dict[str, Any]

MAX_ERROR_CHARS = 2_000


def clean(text: str) -> str:
    """Return the text without NUL and lone surrogates, which neither models nor Flower take."""
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "ignore")


def without_secrets(text: str) -> str:
    """Return a text whose addresses have no user info, no query string and no fragment."""
    text = re.sub(r"(?<=://)[^\s/?#\"'<>]*@", "", text)
    text = re.sub(r"\?[^\s\"'<>]+", "?...", text)
    return re.sub(r"(?<=[\w/.=-])#[^\s\"'<>]+", "", text)


def cut(text: str, limit: int) -> str:
    """Return the beginning of a text that is too long, with a mark that tells how long it was."""
    mark = f"\n[cut: the whole has {len(text)} characters]"
    return text if len(text) <= limit else text[: limit - len(mark)] + mark


def error_text(exc: BaseException) -> str:
    says = str(exc) if isinstance(exc, (RuntimeError, ValueError)) else ""
    return cut(without_secrets(clean(says or repr(exc))), MAX_ERROR_CHARS)


def json_text(value: object) -> str:
    """Return a value as clean JSON text in which every script stands as itself."""
    return clean(re.sub(r"(\\\\)|\\u0000", r"\1", json.dumps(value, ensure_ascii=False)))


def json_value(text: object) -> object:
    """Return the value of a JSON text, or the argument itself where it is no such text."""
    try:
        # JSON has no NaN and no Infinity, and `int` refuses them.
        return json.loads(text, parse_constant=int) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text
