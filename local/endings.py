"""How the command ends: on a signal, without a reader, and with an error in one sentence."""

import os
import select
import signal
import stat
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from types import FrameType
from typing import NoReturn

import typer

from local.screen import console_on
from local.terminal import one_line

# Then the keeper of the SuperLink's processes has the rest to itself.
END_SECONDS = 5


def end_on_signals() -> None:
    """Let SIGTERM, SIGHUP and a closed pipe end this process, soon and in order."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, end)
    if stat.S_ISFIFO(os.fstat(1).st_mode):
        Thread(target=end_with_the_reader, daemon=True).start()


def end(number: int, _frame: FrameType | None) -> NoReturn:
    """Leave what is open in order; the kernel ends a process that takes too long for that."""
    signal.alarm(END_SECONDS)
    sys.exit(128 + number)


def end_with_the_reader() -> None:
    """Wait until nobody reads standard output any more, and hang up."""
    output = select.poll()
    output.register(1, 0)
    output.poll()
    # What is still to be written is for nobody.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.kill(os.getpid(), signal.SIGHUP)


@contextmanager
def one_sentence_errors(debug: bool) -> Iterator[None]:
    """Print an error as its message alone, and exit with status 1.

    `debug` adds where it comes from, without the values of variables: keys could be among them.
    """
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:  # noqa: BLE001 (whatever it is, a person reads it)
        if debug:
            traceback.print_exc()
        known = isinstance(error, RuntimeError | OSError | ValueError)
        message = str(error) if known else f"{type(error).__name__}: {error} (--debug says where)"
        console = console_on(sys.stderr)
        for line in message.splitlines():
            console.print(one_line(line), style="red")
        raise typer.Exit(1) from None
