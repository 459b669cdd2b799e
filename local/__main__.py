"""The command line: one question, or a conversation in a run series."""

import os
import sys
from contextlib import ExitStack, suppress
from typing import Annotated

import typer
from flwr.app import UserConfig
from rich.console import Console

from local.choice import chosen_services, search_of
from local.endings import end_on_signals, one_sentence_errors
from local.prompt import HELP, is_command, prompt_session, typed, unechoed, whole_question
from local.screen import console_on
from local.services import services
from local.stand_ins import stand_in_fetch, stand_in_model
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


def main(
    question: Annotated[str | None, typer.Argument()] = None,
    model: Annotated[str | None, typer.Option(help="The model's name.", show_default=MODEL)] = None,
    max_tool_turns: Annotated[
        int, typer.Option(min=0, max=10, help="How often the model may ask for sources.")
    ] = MAX_TOOL_TURNS,
    max_research_seconds: Annotated[
        int, typer.Option(min=1, max=3600, help="How long it may look for them.")
    ] = MAX_RESEARCH_SECONDS,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Answer QUESTION from public sources, on a private SuperLink on this machine.

    Text on standard input is the question, or is added to QUESTION. Without
    either, on a terminal, it holds a conversation, in which /help says what
    to type. The answer alone goes to standard output, in Markdown; all else
    goes to standard error.

    What isn't set up has an offline stand-in. The model is real with
    FLWR_MODEL_API_KEY, FLWR_MODEL_API_ENDPOINT, or --model and an Ollama
    (OLLAMA_HOST); the search with BRAVE_API_KEY, TAVILY_API_KEY, EXA_API_KEY
    or FLWR_WEB_SEARCH_ENDPOINT, or a real model and the dependency group
    `local`; the fetch with FLWR_WEB_FETCH_ENDPOINT, or a real search and
    that group.
    """
    for name, text in (("QUESTION", question), ("--model", model)):
        if text is not None and not text.strip():
            raise typer.BadParameter("must not be blank", param_hint=name)
    config: UserConfig = {
        "agent.model": model or MODEL,
        "agent.max-tool-turns": max_tool_turns,
        "agent.max-research-seconds": max_research_seconds,
    }
    out, err = console_on(sys.stdout), console_on(sys.stderr)
    end_on_signals()
    with one_sentence_errors(debug), ExitStack() as stack:
        question = whole_question(question, err)
        endpoints, kinds = chosen_services(os.environ, model)
        search = search_of(kinds["search"])
        served = stack.enter_context(services(stand_in_model, search, stand_in_fetch))
        environment = {key: url or served[key] for key, url in endpoints.items()}
        err.print(" · ".join(f"{name}: {kind}" for name, kind in kinds.items()), style="dim")
        with Activity(err, "starting a SuperLink"):
            link = stack.enter_context(superlink(environment))
        if question is None:
            converse(out, err, link, config)
        elif not ask(out, err, link, start_run(link, {**config, "agent.input": question})):
            raise typer.Exit(1)


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
    # Typer's own way to show an error prints the local variables, API keys among them.
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
