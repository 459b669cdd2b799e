"""The command line: one question, or a conversation in a run series."""

import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from typing import Annotated

import grpc
import typer
from flwr.app import UserConfig
from rich.console import Console

from local.prompt import HELP, is_command, prompt_session, typed, unechoed, whole_question
from local.screen import console_on
from local.services import services
from local.stand_ins import stand_in_fetch, stand_in_model, stand_in_search
from local.superlink import (
    Run,
    SuperLink,
    run_events,
    run_status,
    start_run,
    stop_run,
    superlink,
    wait_for_end,
)
from local.terminal import Activity, one_line, show_run
from research_agent.agent_app import MAX_RESEARCH_SECONDS, MAX_TOOL_TURNS, MODEL

STAND_IN = "offline stand-in"
OLLAMA_PORT = 11434
# What sets up a real service, in the environment of the SuperLink.
MODEL_KEYS = ("FLWR_MODEL_API_ENDPOINT", "FLWR_MODEL_API_KEY")
SEARCH_KEYS = ("FLWR_WEB_SEARCH_ENDPOINT", "BRAVE_API_KEY", "TAVILY_API_KEY", "EXA_API_KEY")
FETCH_KEY = "FLWR_WEB_FETCH_ENDPOINT"


def main(
    question: Annotated[str | None, typer.Argument()] = None,
    model: Annotated[str | None, typer.Option(help="The model's name.", show_default=MODEL)] = None,
    max_tool_turns: Annotated[
        int, typer.Option(min=0, max=10, help="How often the model may ask for sources.")
    ] = MAX_TOOL_TURNS,
    max_research_seconds: Annotated[
        int, typer.Option(min=1, max=3600, help="How long it may look for them.")
    ] = MAX_RESEARCH_SECONDS,
) -> None:
    """Answer QUESTION from public sources, on a private SuperLink on this machine.

    Text on standard input is the question, or is added to QUESTION. Without
    either, on a terminal, it holds a conversation, in which /help says what
    to type. The answer alone goes to standard output, in Markdown; all else
    goes to standard error.

    What isn't set up has an offline stand-in. The model is real with
    FLWR_MODEL_API_KEY, FLWR_MODEL_API_ENDPOINT, or --model and an Ollama on
    this machine; the search with BRAVE_API_KEY, TAVILY_API_KEY, EXA_API_KEY
    or FLWR_WEB_SEARCH_ENDPOINT; the fetch with FLWR_WEB_FETCH_ENDPOINT, or a
    real search and the dependency group `local`.
    """
    for name, text in (("QUESTION", question), ("--model", model)):
        if text is not None and not text.strip():
            raise typer.BadParameter("must not be blank", param_hint=name)
    out, err = console_on(sys.stdout), console_on(sys.stderr)
    question = whole_question(question, err)
    config: UserConfig = {
        "agent.model": model or MODEL,
        "agent.max-tool-turns": max_tool_turns,
        "agent.max-research-seconds": max_research_seconds,
    }
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    with ExitStack() as stack:
        stand_ins = stack.enter_context(services(stand_in_model, stand_in_search, stand_in_fetch))
        environment, kinds = chosen_services(os.environ, model, stand_ins)
        err.print(" · ".join(f"{name}: {kind}" for name, kind in kinds.items()), style="dim")
        with Activity(err, "starting a SuperLink"):
            link = stack.enter_context(superlink(environment))
        try:
            if question is None:
                converse(out, err, link, config)
            elif not ask(out, err, link, start_run(link, {**config, "agent.input": question})):
                raise typer.Exit(1)
        except grpc.RpcError as error:
            # Nothing starts it again.
            reason = error.details() if isinstance(error, grpc.Call) else error
            err.print(f"No answer: the SuperLink is gone ({one_line(str(reason))}).", style="red")
            raise typer.Exit(1) from None


def chosen_services(
    environ: Mapping[str, str], model: str | None, stand_ins: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment that the SuperLink needs besides `environ`, and what each service is.

    A service that `environ` sets up is used as it is; in place of the others come the stand-ins.
    """

    def has(*keys: str) -> bool:
        return any(environ.get(key, "").strip() for key in keys)

    environment = dict(stand_ins)
    kinds = {"model": STAND_IN, "search": STAND_IN, "fetch": STAND_IN}
    if has(*MODEL_KEYS):
        del environment["FLWR_MODEL_API_ENDPOINT"]
        kinds["model"] = environ.get("FLWR_MODEL_API_ENDPOINT") or "Flower's endpoint"
    elif model and listens(OLLAMA_PORT):
        environment["FLWR_MODEL_API_ENDPOINT"] = f"http://127.0.0.1:{OLLAMA_PORT}/v1/responses"
        kinds["model"] = f"{model} on Ollama"
    elif model:
        kinds["model"] += f" (no Ollama on port {OLLAMA_PORT})"
    if has(*SEARCH_KEYS):
        del environment["FLWR_WEB_SEARCH_ENDPOINT"]
        kinds["search"] = "real"
    if has(FETCH_KEY) or (kinds["search"] == "real" and find_spec("trafilatura")):
        del environment[FETCH_KEY]
        kinds["fetch"] = "real"
    elif kinds["search"] == "real":
        kinds["fetch"] += " (the real one: --group local)"
    return environment, kinds


def listens(port: int) -> bool:
    """Return whether something on loopback accepts connections on the port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def converse(out: Console, err: Console, link: SuperLink, config: UserConfig) -> None:
    """Answer the questions that are typed, in one run series, until one leaves."""
    run: Run | None = None
    with prompt_session() as session:
        while (text := typed(session)) not in (None, "/quit", "/exit"):
            if text == "/new":
                run = None
                err.print("What was said before is left out from now on.")
            elif text == "/help":
                err.print(HELP)
            elif is_command(text):
                err.print(
                    f"There is no command {one_line(text)}: /help shows those that there are."
                )
            elif text:
                # Ctrl-C before the run has started keeps the conversation too.
                with suppress(KeyboardInterrupt):
                    run = follow_up(link, {**config, "agent.input": text}, run)
                    ask(out, err, link, run)


def follow_up(link: SuperLink, config: UserConfig, before: Run | None) -> Run:
    """Start a run in the series of the run before it, or in a new one."""
    if before is None:
        return start_run(link, config)
    # The series holds what a run leaves only when that run has ended.
    wait_for_end(link, before)
    return start_run(link, config, before.series_id)


def ask(out: Console, err: Console, link: SuperLink, run: Run) -> bool:
    """Show a run and return whether it gives an answer. Ctrl-C stops the run."""
    try:
        with unechoed():
            reason = show_run(out, err, run_events(link, run))
    except KeyboardInterrupt:
        stop_run(link, run)
        reason = "stopped"
    if reason is None:
        return True
    err.print(f"No answer: {reason or one_line(run_status(link, run)[1])}", style="red")
    return False


if __name__ == "__main__":
    typer.run(main)
