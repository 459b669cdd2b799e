"""The README, so that it can't rot: its commands are run, its output, tables and names compared."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.choice import FETCH_KEY, MODEL_KEYS, SEARCH_KEYS
from local.stand_ins import PAGES
from local.superlink import CHECKOUT
from research_agent.items import call_output
from research_agent.note import NOTE_OPENING, answer_note

README = (CHECKOUT / "README.md").read_text()

NOT_RUN = {
    "uv run --group test pytest": "runs this very test",
    "bash .ci/run": "runs this very test",
    "uv run flwr login supergrid": "needs an account",
    "uv run flwr run . supergrid --stream": "needs an account",
    "uv run flwr run . supergrid --stream --run-config "
    "'agent.input=\"Which open federated AI frameworks are there?\"'": "needs an account",
    "uv run --group local python -m local --model qwen3 "
    '"What is new in federated AI?"': "needs an Ollama and the internet",
}
# What a person asks who has no terminal, and how much of the figures a test has time for.
INPUT = {"uv run python -m local": "What is federated AI?\n"}
BENCHMARK = "uv run --group test python -m tests.benchmark"
MORE = {BENCHMARK: " --rounds 1 --calls 1 --chats 0"}

# The quick tests keep the benchmark's process from taking on more that takes long meanwhile.
pytestmark = pytest.mark.xdist_group("benchmark")


def blocks(language: str) -> list[str]:
    """Return the README's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Return the commands that the README tells one to type."""
    typed = [line for block in blocks("sh") for line in block.splitlines()]
    shown = re.findall(r"^\$ (.*)$", "\n".join(blocks("console")), re.MULTILINE)
    return list(dict.fromkeys([*shown, *typed]))


@pytest.fixture(scope="module")
def fresh_copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a copy of the checkout that nothing is installed for."""
    copy = tmp_path_factory.mktemp("fresh") / "research-agent"
    # The last is how pytest begins a `.pytest_cache`.
    hidden = shutil.ignore_patterns(".*_cache", ".venv", ".git", "pytest-cache-files-*")
    shutil.copytree(CHECKOUT, copy, ignore=hidden)
    yield copy
    shutil.rmtree(copy)


def run(command: str, copy: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the README as a newcomer would."""
    hidden = ("VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", *MODEL_KEYS, *SEARCH_KEYS, FETCH_KEY)
    return subprocess.run(
        shlex.split(command + MORE.get(command, "")),
        cwd=copy,
        env={key: value for key, value in os.environ.items() if key not in hidden},
        input=INPUT.get(command, ""),
        capture_output=True,
        text=True,
        check=False,
    )


# Each process that takes part installs everything for itself, so there are two at most.
@pytest.mark.registry
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=[] if c == BENCHMARK else pytest.mark.xdist_group("readme"))
        for c in commands()
        if c not in NOT_RUN
    ],
)
def test_the_command_works(command: str, fresh_copy: Path) -> None:
    done = run(command, fresh_copy)
    assert done.returncode == 0, done.stdout + done.stderr
    for block in blocks("console"):
        first, _, output = block.partition("\n")
        if first == f"$ {command}":
            # Fetches of a turn end in any order.
            shown = done.stderr.splitlines() + done.stdout.splitlines()
            assert sorted(line for line in shown if line in output) == sorted(output.splitlines())
            assert done.stdout in output


def test_each_command_that_is_not_run_stands_in_the_readme() -> None:
    assert set(NOT_RUN) <= set(commands())


def test_the_first_command_needs_nothing_and_the_judge_runs_the_tests() -> None:
    assert commands()[0] == 'uv run python -m local "What is federated AI?"'
    assert commands()[0] in "\n".join(README.splitlines()[:10])
    assert "uv run --group test pytest" in commands()
    assert "uv run --group test pytest\n" in (CHECKOUT / ".ci" / "run").read_text()


def test_the_note_that_is_shown_is_the_apps() -> None:
    [block] = blocks("text")
    answer, opening, _ = block.partition(NOTE_OPENING)
    page = next(page for page in PAGES if page.url in answer)
    output = call_output({"call_id": "c"}, json.dumps({"url": page.url, "content": page.text}))
    assert opening
    assert answer + answer_note(answer, [], [output], []) == block.rstrip("\n")


def test_each_claim_names_a_test_that_exists() -> None:
    tests = "\n".join(path.read_text() for path in (CHECKOUT / "tests").glob("test_*.py"))
    section = README.partition("## What it guarantees")[2].partition("\n## ")[0]
    named = re.findall(r"`(test_\w+)`", section)
    assert len(named) >= 10
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_the_table_of_the_configuration_is_that_of_the_project() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]["agent"]
    rows = re.findall(r"^\| `agent\.([a-z-]+)` \| `(.*?)` \|", README, re.MULTILINE)
    assert {key: tomllib.loads(f"value = {value}")["value"] for key, value in rows} == config


def test_what_a_user_sees_is_what_the_code_says() -> None:
    rooms = (CHECKOUT / "research_agent").glob("*.py")
    source = "\n".join(path.read_text() for path in rooms)
    section = README.partition("## When something fails")[2].partition("\n## ")[0]
    seen = re.findall(r"^\| .*?`(.+?)` ", section, re.MULTILINE)
    assert len(seen) >= 10
    for text in seen:
        for fixed in re.split(r"…|agent\.|.* failed:", text):
            assert " ".join(fixed.split()) in " ".join(source.split()), text
