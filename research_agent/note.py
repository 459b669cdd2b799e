"""What the reader of an answer must know besides its text."""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote_to_bytes

from research_agent.failures import MAX_REASON_CHARS
from research_agent.items import is_error_output, tool_outputs
from research_agent.texts import JSONObject, clean

MAX_NOTE_LINKS = 5

# What the app adds to an answer begins like this: no model writes it, and later runs know it.
NOTE_OPENING = "\n\n---\nAdded by Research Agent, not by the model:\n"


# Where an address of an answer begins. One without brackets around it ends at a stop: a quote, `|`,
# `*`, a long dash, Chinese and Japanese punctuation. Parentheses are part of it in pairs.
ADDRESS = r"(?:https?://(?=[^\W_])|(?<![a-z0-9_./@-])www\.(?=[^\W_]))"
STOPS = r'\s<>\[\]{}"`|*\xab\xbb\u2014\u2018-\u206f\u3000-\u303f\uff00-\uff65'
PAIR = rf"\((?:[^\\(){STOPS}]|\([^\\(){STOPS}]*+\))*+\)"
LINK = re.compile(
    rf"(?i)<({ADDRESS}[^<>\n]*+)>|\]\(({ADDRESS}(?:\\\S|[^\\()\s]|{PAIR})*+)"
    rf"|({ADDRESS}(?:\\[^\w{STOPS}]|\\_|[^\\(){STOPS}]|{PAIR})*+)"
)
ESCAPE = re.compile(r"\\(?=[^\w\s]|_)")
# In a source an address begins and ends with less.
SOURCE_START = re.compile(
    r"(?i)(?:(?:https?:)?//|(?<![a-z0-9@./=&?%-])(?=[a-z0-9-]++\.\w))(?:www\.(?=\w))?"
)
SOURCE_END = re.compile(r"(?!(?:[-.~:@=+%?/_(]|&(?!\w+;))*+[^\W_])")


def answer_note(
    text: str, messages: list[JSONObject], evidence: list[JSONObject], shortfalls: list[str]
) -> str:
    """Return what the reader of an answer must know besides its text: a short note, or nothing."""
    lines = list(dict.fromkeys(shortfalls))
    if unknown := unknown_links(text, source_texts(messages, evidence)):
        short = [link.replace(" ", "%20") for link in unknown if len(link) <= MAX_REASON_CHARS]
        named = [f"<{link}>" for link in short[:MAX_NOTE_LINKS]]
        if len(named) < len(unknown):
            named.append(f"{len(unknown) - len(named)} more")
        lines.append(f"Not among this answer's sources, so check them: {', '.join(named)}")
    return NOTE_OPENING + "\n".join(f"- {line}" for line in lines) if lines else ""


def source_texts(messages: list[JSONObject], evidence: list[JSONObject]) -> Iterator[str]:
    """Yield the texts whose links an answer may give: messages, and what tools returned."""
    for item in messages:
        if item["role"] == "assistant":
            # It gives its links but those that its note names.
            answered, _, note = item["content"].partition(NOTE_OPENING)
            yield from unknown_links(answered, [note])
        else:
            yield item["content"]
    given = [item for item in tool_outputs(evidence) if not is_error_output(item["output"])]
    yield from (item["output"] for item in given)
    # Not every service that fetches a page tells its address again.
    ids = {item["call_id"] for item in given}
    calls = [
        item for item in evidence if item["type"] == "function_call" and item["call_id"] in ids
    ]
    yield from (call["arguments"] for call in calls if call["name"] == "web_fetch")


def unknown_links(text: str, sources: Iterable[str]) -> list[str]:
    """Return the links of a text, each once and in order, that stand in none of the sources."""
    links: dict[str, str] = {}
    for pointed, destination, bare in LINK.findall(text):
        link = ESCAPE.sub("", pointed or destination or bare.rstrip(".,;:!?'_~"))
        links.setdefault(spelt_alike(link.partition("#")[0]).rstrip("/?&") or link, link)
    given = spelt_alike("\n".join(sources)) if links else ""
    return [
        link
        for address, link in links.items()
        # Where an address goes on in a source, that is another one.
        if not any(map(SOURCE_END.match, given.split(address)[1:]))
    ]


def spelt_alike(text: str) -> str:
    """Return a text whose addresses are spelt `//host/path`, alike where they mean the same."""
    text = re.sub(r"\\[nrt]", " ", ESCAPE.sub("", text)).replace("&amp;", "&")
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)
    text = re.sub(r"([?&])(?:utm_\w+=[\w.~%+-]*&?)++", r"\1", text)
    text = unquote_to_bytes(clean(text)).decode(errors="surrogateescape").replace("/?", "?")
    text = SOURCE_START.sub("//", text)
    return re.sub(r"//[a-z0-9.-]*+[\w.-]+", lambda host: host[0].lower(), text)
