"""The app on newer Flowers: each in an environment of its own, with its SuperLink and client."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from local.services import (
    JSONObject,
    Reply,
    assistant_message,
    function_call,
    response,
    services,
)
from local.stand_ins import stand_in_search
from local.superlink import (
    CHECKOUT,
    START_SECONDS,
    Run,
    bundle,
    free_ports,
    is_taken,
    kept,
    superlink_arguments,
    superlink_environment,
    wait_for,
)
from tests.conftest import Bench, Seen
from tests.scripted import QUESTION, message
from tests.test_superlink import DRAFT, NO_SUCH_MODEL, PAGE, SEARCH, pieces

# The Flowers, and what their SuperExecs have to be told besides.
FLOWERS = {"1.36.0": ("--plugin-type", "serverapp"), "1.42.0": ()}
CLIENT = Path(__file__).parent / "newer_flower.py"
SUPERLINK = Path(__file__).parent / "newer_superlink.py"

FETCH = function_call("web_fetch", "fetch", url=PAGE)

pytestmark = [pytest.mark.registry, pytest.mark.timeout(400)]


@dataclass(frozen=True)
class NewerFlower:
    """A SuperLink of a newer Flower, its scripted model, and what reaches it: its own client."""

    bench: Bench
    client: subprocess.Popen[str]
    fab: Path

    def run(
        self,
        model: str,
        *replies: object,
        turns: int = 1,
        prompt: str = QUESTION,
        series_id: int | None = None,
    ) -> Seen:
        """Follow a run whose model gives these replies to its end."""
        self.bench.script(model, *replies)
        order = {
            "fab": str(self.fab),
            "config": {"agent.model": model, "agent.max-tool-turns": turns},
            "prompt": prompt,
            "series_id": series_id,
        }
        assert self.client.stdin
        assert self.client.stdout
        print(json.dumps(order), file=self.client.stdin, flush=True)
        seen = json.loads(self.client.stdout.readline())
        seen = Seen(Run(seen.pop("run_id"), seen.pop("series_id")), **seen)
        self.bench.check(model, seen.details)
        return seen


# In one process each: others would install it, and start its SuperLink, for themselves.
@pytest.fixture(
    scope="module",
    params=[pytest.param(v, marks=pytest.mark.xdist_group(f"flower-{v}")) for v in FLOWERS],
)
def flower(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NewerFlower]:
    """Install a Flower, once for all times, and give its SuperLink with the services."""
    assert request.config.cache is not None
    installed = request.config.cache.mkdir(f"flower-{request.param}")
    uv = [sys.executable, "-m", "uv"]
    subprocess.run(
        [*uv, "venv", "-q", "--allow-existing", "-p", sys.executable, installed], check=True
    )
    package = f"flwr=={request.param}"
    subprocess.run([*uv, "pip", "install", "-q", "-p", installed, package], check=True)
    fab = tmp_path_factory.mktemp("flower") / "app.fab"
    fab.write_bytes(bundle(CHECKOUT))

    bench = Bench()

    def model(request: JSONObject) -> Reply:
        # A newer SuperLink asks for the title of a chat by itself; that input is a text.
        if isinstance(request["input"], str):
            return response(assistant_message("A title"))
        return bench.model(request)

    commands = installed / "bin"
    with services(model, stand_in_search, bench.fetch) as addresses:
        environment = superlink_environment(commands) | addresses
        environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.1"
        with (
            newer_superlink(commands, environment, FLOWERS[request.param]) as address,
            subprocess.Popen(
                [commands / "python", CLIENT, address],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as client,
        ):
            yield NewerFlower(bench, client, fab)


@contextmanager
def newer_superlink(
    commands: Path, environment: dict[str, str], told: Sequence[str]
) -> Iterator[str]:
    """Start a SuperLink and a SuperExec that installs for each run; yield the address for HTTP."""
    control, runtime = (f"127.0.0.1:{port}" for port in free_ports(2))
    arguments = {
        "flower-superlink": superlink_arguments(control, runtime),
        "flower-superexec": [
            *("--insecure", "--runtime-api-address", runtime, *told),
            "--allow-runtime-dependency-installation",
        ],
    }
    command = [str(commands / "python"), str(SUPERLINK), json.dumps(arguments)]
    with (
        tempfile.TemporaryFile() as log,
        kept({"SuperLink": command}, environment, log) as (keeper, _),
    ):
        listens = partial(is_taken, int(runtime.rpartition(":")[2]))
        wait_for(listens, START_SECONDS, "The SuperLink doesn't answer", keeper, log)
        yield runtime


@pytest.fixture(scope="module")
def answered(flower: NewerFlower) -> Seen:
    """Give a run that has searched, fetched and answered."""
    return flower.run("main", response(DRAFT, SEARCH, FETCH), pieces("Ans", "wer."))


def test_the_main_path_holds(flower: NewerFlower, answered: Seen) -> None:
    assert answered.status == "finished:completed"
    assert answered.answers() == [answered.text()] == ["Answer."]
    assert answered.ends() == ["response.completed"]
    assert answered.events[-1]["type"] == "response.completed"
    assert "draft" not in json.dumps([answered.events, answered.log, answered.items])
    planning, answer = flower.bench.requests["main"]
    assert planning["input"] == [message("user", QUESTION)]
    found, page = (json.loads(item["output"]) for item in answer["input"][-2:])
    assert found["results"][0]["url"] == PAGE
    assert page["content"].startswith("Federated AI trains")


def test_a_follow_up_replays_the_messages(flower: NewerFlower, answered: Seen) -> None:
    series_id = answered.run.series_id
    second = flower.run(
        "second", pieces("Second answer."), turns=0, prompt="And then?", series_id=series_id
    )
    [request] = flower.bench.requests["second"]
    assert request["input"] == [
        message("user", QUESTION),
        message("assistant", "Answer."),
        message("user", "And then?"),
    ]
    assert second.answers() == ["Answer.", "Second answer."]


def test_a_failed_provider_fails_the_run_for_everybody_to_see(flower: NewerFlower) -> None:
    seen = flower.run("404", *[NO_SUCH_MODEL] * 4)
    assert seen.status == "finished:failed"
    assert "The answer request failed" in seen.details
    assert "no such model" in seen.details
    assert seen.details.removeprefix("AgentApp failed with exception: ") in seen.log
    assert seen.ends() == ["error"]
    assert seen.events[-1]["message"] in seen.details
    assert seen.answers() == []
