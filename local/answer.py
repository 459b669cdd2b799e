"""The answer: drawn as Markdown on a terminal, as the model wrote it in a file or a pipe."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple, Self

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.markdown import Markdown, TableDataElement
from rich.segment import SegmentLines

from local.screen import LastLines, Line, redraws

# HTML is shown instead of being left out. Definitions of links stay where they are written: the
# paragraphs that use them are on the screen already when they come.
PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["table", "strikethrough"])
    .disable("reference")
)


class Answer(ABC):
    """An answer that is shown on one console while it comes, with notes about it on another."""

    def __init__(self, out: Console, err: Console) -> None:
        self.out = out
        self.err = err
        self.begun = False
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        """Return the answer, which hasn't begun."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the answer, whether it is whole or not."""
        self.end()
        self.show_notes()

    @abstractmethod
    def add(self, text: str) -> None:
        """Show more of the answer."""

    @abstractmethod
    def end(self) -> None:
        """Show what is left of the answer, and end its last line."""

    def note(self, line: str) -> None:
        """Show a line once it breaks into nothing that is being written."""
        self.notes.append(line)

    def show_notes(self) -> None:
        """Show the notes that have waited."""
        for line in self.notes:
            self.err.print(line)
        self.notes.clear()


def answer_on(out: Console, err: Console) -> Answer:
    """Return an answer in the form that suits the console."""
    return DrawnAnswer(out, err) if redraws(out) else RunningAnswer(out, err)


class RunningAnswer(Answer):
    """An answer as the model writes it; on a terminal its lines break between words."""

    def __init__(self, out: Console, err: Console) -> None:
        super().__init__(out, err)
        self.word = ""
        self.column = 0

    def add(self, text: str) -> None:
        """Show more of the answer; on a terminal a word waits for its end."""
        self.begun = True
        words, self.word = re.findall(r"\S+|\s", self.word + text), ""
        if self.out.is_terminal and not words[-1].isspace():
            self.word = words.pop()
        self.write(words)

    def end(self) -> None:
        """Show what is left of the answer, and end its last line."""
        self.write([self.word])
        if self.column:
            self.write(["\n"])

    def write(self, words: list[str]) -> None:
        """Write words and the blanks between them, on a terminal each word where it has room."""
        for word in words:
            width = cell_len(word)
            if self.out.is_terminal and self.column and self.column + width > self.out.width:
                self.out.file.write("\n")
                self.column = 0
                if word.isspace():
                    continue
            self.out.file.write(word)
            self.column += width
            if word == "\n":
                self.column = 0
                self.out.file.flush()
                self.show_notes()
        self.out.file.flush()


class DrawnAnswer(Answer):
    """An answer drawn as Markdown while it streams: what has ended once, the rest again."""

    def __init__(self, out: Console, err: Console) -> None:
        super().__init__(out, err)
        # The text that isn't printed, and the place and number of the piece that it begins with.
        self.rest: tuple[str, int, int | None] = ("", 0, None)
        self.printed = False
        self.draft = LastLines(out, self.draft_lines)

    def add(self, text: str) -> None:
        """Show more of the answer."""
        self.begun = True
        self.draft.start()
        before, place, number = self.rest
        self.rest = (before + text, place, number)
        # What begins in a line is known when the line is whole.
        if "\n" in text:
            self.print_ended()

    def print_ended(self) -> None:
        """Print the pieces that have ended."""
        text, place, number = self.rest
        known = pieces(text[: text.rindex("\n") + 1], place, number)
        if ended := known[:-1]:
            last = known[-1]
            rest = text.split("\n")[last.first_line :]
            self.rest = ("\n".join(rest), last.place, last.number)
            self.print(ended)

    def end(self) -> None:
        """Print what is left of the answer."""
        last = pieces(*self.rest)
        self.rest = ("", 0, None)
        self.print(last)
        self.draft.stop()

    def print(self, ended: list["Piece"]) -> None:
        """Print pieces for good, and the notes that have waited for their end."""
        lines = self.lines(ended)
        self.printed = True
        self.draft.print(SegmentLines(lines, new_lines=True))
        if self.notes:
            self.draft.stop()
            self.show_notes()
            self.draft.start()

    def draft_lines(self) -> SegmentLines:
        """Return the lines of what hasn't ended."""
        return SegmentLines(self.lines(pieces(*self.rest)), new_lines=True)

    def lines(self, shown: list["Piece"]) -> list[Line]:
        """Return the lines of pieces, with blank ones between blocks."""
        lines: list[Line] = []
        for piece in shown:
            if piece.place == 0 and (lines or self.printed):
                lines.append([])
            lines += drawn(self.out, piece.tokens)
        return lines


class Piece(NamedTuple):
    """What ends as one: an item at a place in a list, with its number, or another block."""

    tokens: list[Token]
    first_line: int
    place: int = 0
    number: int | None = None


def pieces(text: str, place: int = 0, number: int | None = None) -> list[Piece]:
    """Return the pieces of a text; the first has this place and number if it is an item."""
    found = []
    for block in balanced(PARSER.parse(text)):
        if block[0].type in ("bullet_list_open", "ordered_list_open"):
            if number is None:
                number = int(block[0].attrs.get("start", 1))
            for n, item in enumerate(balanced(block[1:-1])):
                # A list of its own.
                opening = block[0].copy(attrs={"start": number + n})
                tokens = [opening, *item, block[-1]]
                found.append(Piece(tokens, first_line(item), place + n, number + n))
        else:
            found.append(Piece(block, first_line(block)))
        place, number = 0, None
    return found


def first_line(tokens: list[Token]) -> int:
    """Return the number of the line in which tokens begin."""
    return tokens[0].map[0] if tokens[0].map else 0


def balanced(tokens: list[Token]) -> list[list[Token]]:
    """Return the tokens in groups, each with all that it opens and closes."""
    groups: list[list[Token]] = []
    depth = 0
    for token in tokens:
        if depth == 0:
            groups.append([])
        groups[-1].append(token)
        depth += token.nesting
    return groups


class WholeCell(TableDataElement):
    """A cell of a table that keeps what doesn't fit on its line."""

    def __init__(self, justify: JustifyMethod) -> None:
        super().__init__(justify)
        self.content.overflow = "fold"


class AnswerMarkdown(Markdown):
    """Markdown with nothing left out."""

    elements: ClassVar = Markdown.elements | {"th_open": WholeCell, "td_open": WholeCell}


def drawn(console: Console, tokens: list[Token]) -> list[Line]:
    """Return the lines in which rich draws a block of Markdown."""
    markdown = AnswerMarkdown("")
    markdown.parsed = [
        token.copy(children=list(spelt_out(token.children))) if token.children else token
        for token in tokens
    ]
    lines = [without_padding(line) for line in console.render_lines(markdown, pad=False)]
    # Rich begins a list and ends a rule with a blank line.
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def spelt_out(tokens: list[Token]) -> Iterator[Token]:
    """Yield the tokens of a text with each address beside its text, and lines as they were."""
    for token in tokens:
        if token.type == "image":
            yield plain_text(f"{token.content} ({token.attrs['src']})")
        elif token.type == "softbreak":
            yield token.copy(type="hardbreak")
        else:
            yield token
        if token.type == "link_open":
            opened = token
        elif token.type == "link_close" and token.markup != "autolink":
            address = plain_text(str(opened.attrs["href"]))
            yield from (plain_text(" ("), opened, address, token, plain_text(")"))


def plain_text(text: str) -> Token:
    """Return a token of text."""
    return Token("text", "", 0, content=text)


def without_padding(line: Line) -> Line:
    """Return a line without the blanks at its end, which a narrower terminal would wrap."""
    while line and not (line[-1].style and line[-1].style.bgcolor):
        *line, last = line
        if text := last.text.rstrip():
            return [*line, last._replace(text=text)]
    return line
