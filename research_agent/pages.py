"""What a connector gave, as text that a model can use."""

import re

from research_agent.failures import HTML
from research_agent.passages import fitted
from research_agent.texts import clean, json_text, json_value


def readable_output(output: object, asked: str, limit: int) -> str:
    """Return what a connector gave as text for the model; raise ``ValueError`` for no page."""
    given = output if isinstance(output, str) else json_text(output)
    value = json_value(given)
    readable = repaired(clean(given) if value is given else json_text(value))
    held = json_value(readable)
    page = held.get("content", held) if isinstance(held, dict) else held
    if page is None or isinstance(page, str):
        require_page(page or "")
    # What needs no repair, and holds every script as itself, goes on to the letter.
    if held == value and "\\u" not in given.replace("\\\\", ""):
        readable = given
    return fitted(readable, asked, limit)


def repaired(text: str) -> str:
    """Return a text as UTF-8 where it was read as Latin-1."""
    if text.isascii():
        return text
    # `web_fetch` of Flower 1.35.0 reads so what names no charset in its HTTP header.
    utf_8 = "[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
    sequences = re.findall(utf_8, text)
    if 2 * len("".join(sequences)) < len(re.findall("[\x80-\xff]", text)):
        return text
    text = re.sub(utf_8, lambda found: found[0].encode("latin-1").decode(errors="ignore"), text)
    # What remains of sequences that lost a byte on the way.
    return re.sub("[\x80-\x9f]", "", text)


HTML_MARKUP = re.compile(r"(?is)<(script|style|head)\b.*?(</\1\s*>|\Z)|<[^<>]*>")
NEEDS_JAVASCRIPT = re.compile(
    r"(?i)(enable|activ(ate|er|ez|ar)|aktivieren?|h?abilit\w+|启用|啟用)\W{0,2}(\w+ )?javascript"
    r"|(requires|requiere|needs|without|turn on) javascript|turn javascript on"
    r"|javascript ?(is (disabled|required|not)|must be|.{0,20}(enabled|disabled|aktivier|有効))"
)


def require_page(page: str) -> None:
    """Raise ``ValueError``, with advice to the model, where a text is no page."""
    # What the bytes of a PDF or an image become when they are read as text.
    unreadable = re.findall("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]", page)
    if page.lstrip().startswith("%PDF-") or len(unreadable) * 10 > len(page):
        advice = "Look for the same as a web page (for arXiv, /abs/ or /html/ in place of /pdf/)."
        raise ValueError(f"This is a PDF, an image or another binary, not text. {advice}")
    # A language that Latin-1 can write has no such share of these letters.
    letters = len(re.findall("[\x80-\xff]", page))
    if letters > 40 and letters > 0.4 * len("".join(page.split())):
        raise ValueError("This page was read in the wrong character encoding. Look elsewhere.")
    visible = HTML_MARKUP.sub(" ", page) if HTML.match(page.lstrip()) else page
    # A shell says little more than that.
    is_shell = len(visible) < 500 and NEEDS_JAVASCRIPT.search(visible)
    if is_shell or not visible.strip():
        raise ValueError("This page has no readable text without JavaScript. Look elsewhere.")
