"""Standard output and standard error as consoles, and lines that are drawn again on a terminal."""

import os
import shutil
from collections.abc import Callable
from io import TextIOWrapper
from typing import TextIO

from rich.console import Console, ConsoleRenderable, RenderableType
from rich.live import Live
from rich.segment import Segment, SegmentLines

Line = list[Segment]


def console_on(stream: TextIO | None) -> Console:
    """Return a console that shows texts as they are, and writes no escape code into a file."""
    if stream is None:
        # Python's stream where the command was started with none.
        stream = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="replace")
    terminal = stream.isatty()
    console = Console(
        file=stream,
        # Rich would take a file for a terminal under FORCE_COLOR.
        force_terminal=terminal,
        color_system="auto" if terminal and not os.environ.get("NO_COLOR") else None,
        soft_wrap=not terminal,
        markup=False,
        emoji=False,
        highlight=False,
    )
    if console.is_dumb_terminal:
        # Rich would take it for one of 80 columns.
        console.size = shutil.get_terminal_size()
    return console


def redraws(console: Console) -> bool:
    """Return whether lines may be drawn again on the console."""
    plain = console.is_dumb_terminal or console.no_color or console.options.ascii_only
    return console.is_terminal and not plain


class LastLines(Live):
    """Lines at the end of a terminal that are drawn again and again, and erased in the end."""

    def __init__(self, console: Console, content: Callable[[], RenderableType]) -> None:
        self.content = content
        # What is to be drawn, and what is on the screen.
        self.lines: list[Line] = []
        self.drawn: list[Line] = []
        super().__init__(
            console=console,
            refresh_per_second=10,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def get_renderable(self) -> SegmentLines:
        """Return the last lines of the content, few enough for a terminal that becomes smaller."""
        lines = self.console.render_lines(self.content(), pad=False)
        self.lines = lines[-max(1, self.console.height // 2) :]
        return SegmentLines(self.lines, new_lines=True)

    def start(self, refresh: bool = False) -> None:
        """Begin to draw, where lines may be drawn again."""
        if redraws(self.console):
            super().start(refresh)

    def stop(self) -> None:
        """Erase the lines."""
        super().stop()
        self.drawn = []

    def print(self, content: RenderableType) -> None:
        """Print something for good above the lines as they are now."""
        # The console writes both at once.
        with self._lock, self.console:
            if self.is_started:
                self.refresh()
            self.console.print(content)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Erase the lines before others are drawn, also where the terminal has wrapped them."""
        # Rich takes each line that it has drawn for one row.
        width = self.console.width
        rows = [max(1, -(-Segment.get_line_length(line) // width)) for line in self.drawn]
        self._live_render._shape = (width, sum(rows)) if rows else None
        self.drawn = self.lines
        return super().process_renderables(renderables)
