"""The command with runs that are told by their question: it starts no SuperLink."""

import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import typer
from flwr.proto.control_pb2 import ListRunsRequest
from flwr.proto.control_pb2_grpc import ControlStub

from local import __main__ as local
from local.services import JSONObject
from local.superlink import free_ports


def events(_link: object, question: str) -> Iterator[JSONObject]:
    """Yield the events of a run."""
    if question == "long":
        for n in range(100_000):
            yield {"type": "response.output_text.delta", "delta": f"line {n}\n"}
    yield {"type": "response.output_text.delta", "delta": f"About {question}"}
    if question == "gone":
        [port] = free_ports(1)
        ControlStub(grpc.insecure_channel(f"127.0.0.1:{port}")).ListRuns(ListRunsRequest())
    if question == "fail":
        yield {"type": "error", "message": "no such model"}
    if question == "slow":
        # Until something is typed.
        select.select([sys.stdin], [], [])
    yield {"type": "response.output_text.delta", "delta": "."}
    yield {"type": "response.completed"}


@contextmanager
def no_superlink(_environment: object) -> Iterator[None]:
    """Start nothing, and tell a lost connection as a SuperLink's."""
    try:
        yield
    except grpc.RpcError:
        raise RuntimeError("The SuperLink failed: gone.") from None


def question_of(_link: object, config: Any, *_: object) -> Any:
    """Return the question in place of the run that it would start."""
    return config["agent.input"]


if __name__ == "__main__":
    replaced = {
        "superlink": no_superlink,
        "start_run": question_of,
        "follow_up": question_of,
        "run_events": events,
    }
    vars(local).update(replaced)
    typer.run(local.main)
