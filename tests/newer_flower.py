"""Runs an app on the SuperLink of a newer Flower, by that Flower's Python and its own client.

The argument is the address of the SuperLink. Each line of standard input is a JSON object: the path
of the app's `fab`, the `config` and the `prompt` of a run, and the `series_id` to continue or null.
What the run has shown and left goes to standard output as such a line, once the run has ended.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from flwr.common.serde import context_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    GetRunSeriesRequest,
    ListRunsRequest,
    StartRunRequest,
    StartRunResponse,
    StreamLogsRequest,
    StreamRunEventsRequest,
)
from flwr.proto.fab_pb2 import Fab

# Flower 1.35 has no client that speaks HTTP.
from flwr.supercore.control import ControlHttpClient  # type: ignore[import-not-found]


def start_request(order: dict[str, Any]) -> StartRunRequest:
    """Return the request that starts a run; up to Flower 1.37 its prompt is a key of the config."""
    fab = Path(order["fab"]).read_bytes()
    config, prompt = order["config"], {"user_prompt": order["prompt"]}
    if "user_prompt" not in StartRunRequest.DESCRIPTOR.fields_by_name:
        config, prompt = config | {"agent.input": order["prompt"]}, {}
    return StartRunRequest(
        fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab),
        override_config=user_config_to_proto(config),
        series_id=order["series_id"],
        **prompt,
    )


def seen(control: Any, run: StartRunResponse) -> dict[str, Any]:
    """Follow a run to its end and return what it has shown and left."""
    run_id = run.run_id
    events = list(control.StreamRunEvents(StreamRunEventsRequest(run_id=run_id)))
    log = control.StreamLogs(StreamLogsRequest(run_id=run_id, after_timestamp=0.0))
    status = control.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id].status
    series = control.GetRunSeries(GetRunSeriesRequest(series_id=run.series_id))
    record: Any = context_from_proto(series.context).state.config_records.get("items", {})
    return {
        "run_id": run_id,
        "series_id": run.series_id,
        "events": [json.loads(event.task_event.data) for event in events],
        "log": "".join(response.log_output for response in log),
        "status": f"{status.status}:{status.sub_status}",
        "details": status.details,
        "items": [json.loads(item) for item in record.get("json", [])],
    }


if __name__ == "__main__":
    control = ControlHttpClient.from_server_address(sys.argv[1], True, None, [])
    for line in sys.stdin:
        run = control.StartRun(start_request(json.loads(line)))
        print(json.dumps(seen(control, run)), flush=True)
