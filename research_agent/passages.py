"""The passages of a long text that fit what was asked."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from itertools import chain

from research_agent.texts import json_text, json_value

# A passage ends with a paragraph, else a sentence, else a line, else a word: first come the ends of
# sentences in Latin, Cyrillic and Arabic script, then the Chinese and Japanese ones.
PASSAGE = re.compile(
    r"(?s).{200,390}\n\s{0,9}\n|.{200,398}(?:[.!?\u061f]\s|[\u3002\uff01\uff1f])"
    r"|.{200,399}\n|.{1,399}\s|.{1,400}"
)
LEFT_OUT = "\n[...]\n"
# The pieces by which passages are compared overlap: two characters of Chinese, Japanese or Korean,
# four of another word, a short word itself.
PIECE = re.compile(r"(?=([\u3040-\ud7a3]{2}|\w{4}|\b\w{1,3}\b))\w")


def fitted(output: str, asked: str, limit: int) -> str:
    """Return an output within the limit; of a long page, the passages that fit what was asked."""
    if len(output) <= limit:
        return output
    value = json_value(output)
    if isinstance(value, dict) and isinstance(page := value.get("content"), str):
        room = limit - len(json_text({**value, "content": ""}))
        if room > limit // 8:
            page = passages(page, asked, room, lambda part: len(json_text(part)) - 2)
            return json_text({**value, "content": page})
    return passages(output, asked, limit)


def passages(text: str, asked: str, limit: int, length: Callable[[str], int] = len) -> str:
    """Return of a text its beginning and the passages that fit best, in the text's own order."""
    parts = PASSAGE.findall(text)
    mark = f"\n[cut: the whole has {len(text)} characters]"
    room = limit - length(LEFT_OUT + mark)
    # Of a first passage that doesn't fit, the beginning may.
    while length(parts[0]) > max(room, 1):
        middle = len(parts[0]) // 2
        parts[:1] = [parts[0][:middle], parts[0][middle:]]
    fits = fitness(parts, asked)
    # The first passages, about an eighth of the limit, come first, and where others fit alike, the
    # sort keeps their order.
    ranked = sorted(range(len(parts)), key=lambda n: (n > limit // 2_400, -fits[n]))
    kept = {-1, len(parts)}
    for place in ranked:
        gaps = 1 - (place - 1 in kept) - (place + 1 in kept)
        room -= length(parts[place]) + gaps * length(LEFT_OUT)
        if room < 0:
            break
        kept.add(place)
    found = [parts[n] if n in kept else LEFT_OUT for n in range(len(parts)) if {n - 1, n} & kept]
    return "".join(found) + mark


def fitness(parts: list[str], asked: str) -> list[float]:
    """Return how well each passage, with its neighbours, fits the line of `asked` it fits best."""
    # Of many lines the first and the last count, of a long one its beginning and its end: that
    # bounds the time and the memory.
    asked_lines = asked.splitlines()
    asked_lines = asked_lines[:16] + asked_lines[16:][-16:]
    lines = [set(pieces(f"{line[:300]} {line[-300:]}")) for line in asked_lines]
    wanted = set().union(*lines)
    shared = [wanted.intersection(pieces(part)) for part in parts]
    counts = Counter(chain.from_iterable(shared))
    rarity = {piece: math.log(len(parts) / count) for piece, count in counts.items()}

    def fit(line: set[str], held: set[str]) -> float:
        # What a passage shares counts by its rarity in the text, as in BM25, and is set against the
        # whole line: so the words of an address don't drown the question.
        return math.fsum(rarity[piece] for piece in line & held) / math.sqrt(len(line) + 1)

    own = [max((fit(line, held) for line in lines), default=0.0) for held in shared]
    padded = [0.0, *own, 0.0]
    return [fit + (padded[n] + padded[n + 2]) / 2 for n, fit in enumerate(own)]


def pieces(text: str) -> list[str]:
    """Return the pieces of a text's words, whatever their case and accents."""
    text = text.casefold()
    if not text.isascii():
        text = unicodedata.normalize("NFD", text)
        text = re.sub("[\u0300-\u036f\u064b-\u0652]", "", text)
        text = unicodedata.normalize("NFC", text)
    return PIECE.findall(text)
