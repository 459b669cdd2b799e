"""One HTTP server on loopback in the shape of the three services: model, search and fetch."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

JSONObject = dict[str, Any]

# A JSON object, the events of a stream, or an HTTP status with a JSON object or a text.
Reply = JSONObject | Iterable[JSONObject] | tuple[int, JSONObject | str]
Behaviour = Callable[[JSONObject], Reply]


@contextmanager
def services(model: Behaviour, search: Behaviour, fetch: Behaviour) -> Iterator[dict[str, str]]:
    """Serve the three behaviours; yield the environment that points a SuperLink at them."""
    behaviours = {"/v1/responses": model, "/search": search, "/fetch": fetch}

    class Handler(BaseHTTPRequestHandler):
        """Answers a POST with what the behaviour of its path gives."""

        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            # A client that has seen enough, or is stopped, hangs up.
            with suppress(ConnectionError):
                super().handle()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send(behaviours[self.path](json.loads(body)))

        def send(self, reply: Reply) -> None:
            status, content = reply if isinstance(reply, tuple) else (200, reply)
            whole = isinstance(content, (dict, str))
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if whole else "text/event-stream")
            # In chunks, as providers stream: a client would wait for more of anything else.
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if isinstance(content, (dict, str)):
                self.send_chunk(content if isinstance(content, str) else json.dumps(content))
            else:
                for event in content:
                    self.send_chunk(f"event: {event.get('type')}\ndata: {json.dumps(event)}\n\n")
            self.send_chunk("")

        def send_chunk(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep the terminal for the conversation."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    base = f"http://127.0.0.1:{server.server_port}"
    try:
        yield {
            "FLWR_MODEL_API_ENDPOINT": f"{base}/v1/responses",
            "FLWR_WEB_SEARCH_ENDPOINT": f"{base}/search",
            "FLWR_WEB_FETCH_ENDPOINT": f"{base}/fetch",
        }
    finally:
        server.shutdown()
        server.server_close()


def response(*output: JSONObject, status: str = "completed") -> JSONObject:
    """Return a whole reply of a model."""
    return {"object": "response", "status": status, "output": list(output)}


def function_call(name: str, call_id: str, **arguments: object) -> JSONObject:
    """Return a model's function call."""
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": json.dumps(arguments, ensure_ascii=False),
    }


def assistant_message(text: str) -> JSONObject:
    """Return a model's message."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}


def text_events(pieces: Iterable[str]) -> Iterator[JSONObject]:
    """Yield the events in which a model streams a message in pieces."""
    yield {"type": "response.created", "response": response(status="in_progress")}
    shown = []
    for piece in pieces:
        shown.append(piece)
        yield {"type": "response.output_text.delta", "delta": piece}
    message = assistant_message("".join(shown))
    yield {"type": "response.completed", "response": response(message)}
