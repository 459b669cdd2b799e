"""Terminals whose screen a test can look at: in this process, and of a command that it starts."""

import os
import sys
import threading
import time
from collections.abc import Callable
from io import StringIO
from typing import Any

import pexpect
import pyte

from local.superlink import CHECKOUT


class Screen(StringIO):
    """A stream that is a terminal; what it was given to write stands in `getvalue()`."""

    def __init__(self, columns: int = 80, lines: int = 24, encoding: str = "utf-8") -> None:
        super().__init__()
        self.said_encoding = encoding
        self.screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self.stream = pyte.Stream(self.screen)
        self.written = threading.Condition()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding that the terminal says it has."""
        return self.said_encoding

    def isatty(self) -> bool:
        """Return that this is a terminal."""
        return True

    def write(self, text: str) -> int:
        """Show text, each line from the first column on."""
        with self.written:
            self.stream.feed(text.replace("\n", "\r\n"))
            self.written.notify_all()
        return super().write(text)

    def text(self) -> str:
        """Return the rows that have left the screen at the top, and those on it."""
        left = [
            "".join(row[column].data for column in range(self.screen.columns))
            for row in self.screen.history.top
        ]
        return "\n".join(row.rstrip() for row in [*left, *self.screen.display]).rstrip()

    def wait_for(self, text: str) -> None:
        """Return when a text is shown."""
        with self.written:
            assert self.written.wait_for(lambda: text in self.text(), timeout=10), self.text()


class Command:
    """A command in a terminal of its own."""

    def __init__(self, *arguments: str, columns: int = 80, lines: int = 24, **environ: str) -> None:
        # They would count more than the terminal's own size.
        sizes = {"COLUMNS", "LINES"}
        inherited = {key: value for key, value in os.environ.items() if key not in sizes}
        self.process: Any = pexpect.spawn(
            sys.executable,
            list(arguments),
            cwd=CHECKOUT,
            env=inherited | {"TERM": "xterm-256color"} | environ,
            dimensions=(lines, columns),
        )
        self.screen = Screen(columns, lines)
        # The terminal's answer to the question where its cursor is.
        self.screen.screen.write_process_input = self.process.send  # type: ignore[method-assign]
        self.written = b""
        self.bytes = pyte.ByteStream(self.screen.screen)

    def wait_until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        """Show what the command writes until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"in {seconds} s only:\n{self.screen.text()}"
            try:
                piece = self.process.read_nonblocking(4096, timeout=0.1)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                assert condition(), f"it has ended:\n{self.screen.text()}"
                return
            self.written += piece
            self.bytes.feed(piece)

    def wait_for(self, text: str) -> None:
        """Return when a text is shown."""
        self.wait_until(lambda: text in self.screen.text())

    def wait_for_prompt(self) -> None:
        """Return when the command waits for something to be typed."""
        screen = self.screen.screen
        self.wait_until(lambda: screen.display[screen.cursor.y].rstrip() == ">")

    def type(self, keys: str) -> None:
        """Type keys; a carriage return is Enter."""
        self.process.send(keys)

    def status(self) -> int | None:
        """Wait for the command to end and return its exit status, None where a signal ended it."""
        self.wait_until(lambda: self.process.flag_eof)
        self.process.wait()
        status: int | None = self.process.exitstatus
        return status
