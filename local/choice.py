"""Which services are real: what the environment sets up, Ollama, a search without a key."""

import socket
from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from local.services import Behaviour
from local.stand_ins import stand_in_search

STAND_IN = "offline stand-in"
KEYLESS = "public search engines, through ddgs"
OLLAMA_PORT = 11434
CONNECT_SECONDS = 2.0
# What sets up a real service, in the environment of the SuperLink.
MODEL_KEYS = ("FLWR_MODEL_API_ENDPOINT", "FLWR_MODEL_API_KEY")
SEARCH_KEYS = ("FLWR_WEB_SEARCH_ENDPOINT", "BRAVE_API_KEY", "TAVILY_API_KEY", "EXA_API_KEY")
FETCH_KEY = "FLWR_WEB_FETCH_ENDPOINT"

# The endpoints that a SuperLink needs besides its environment; None is one of this process's own.
Endpoints = dict[str, str | None]


def chosen_services(
    environ: Mapping[str, str], model: str | None
) -> tuple[Endpoints, dict[str, str]]:
    """Return the endpoints to add to `environ`, and what each service is.

    A service that `environ` sets up is used as it is. Raises ``ValueError`` for an OLLAMA_HOST
    that is no address.
    """

    def has(*keys: str) -> bool:
        return any(environ.get(key, "").strip() for key in keys)

    endpoints: Endpoints = {MODEL_KEYS[0]: None, SEARCH_KEYS[0]: None, FETCH_KEY: None}
    kinds = {"model": STAND_IN, "search": STAND_IN, "fetch": STAND_IN}
    if has(*MODEL_KEYS):
        del endpoints[MODEL_KEYS[0]]
        kinds["model"] = environ.get(MODEL_KEYS[0]) or "Flower's endpoint"
    elif model:
        ollama = ollama_address(environ.get("OLLAMA_HOST", ""))
        if listens(ollama):
            endpoints[MODEL_KEYS[0]] = f"{ollama}/v1/responses"
            kinds["model"] = f"{model} on Ollama at {ollama}"
        else:
            kinds["model"] += f" (no Ollama at {ollama})"
    model_is_real = not kinds["model"].startswith(STAND_IN)
    if has(*SEARCH_KEYS):
        del endpoints[SEARCH_KEYS[0]]
        kinds["search"] = "real"
    elif model_is_real and find_spec("ddgs"):
        # Beside a stand-in for the model nothing leaves the machine that nobody has set up.
        kinds["search"] = KEYLESS
    elif model_is_real:
        kinds["search"] += " (a real one: --group local)"
    search_is_real = not kinds["search"].startswith(STAND_IN)
    if has(FETCH_KEY) or (search_is_real and find_spec("trafilatura")):
        del endpoints[FETCH_KEY]
        kinds["fetch"] = "real"
    elif search_is_real:
        kinds["fetch"] += " (a real one: --group local)"
    return endpoints, kinds


def search_of(kind: str) -> Behaviour:
    """Return what serves a search of this kind where no endpoint of the environment does."""
    if kind != KEYLESS:
        return stand_in_search
    # It needs ddgs, which only the dependency group `local` installs.
    from local.search import keyless_search

    return keyless_search()


def ollama_address(host: str) -> str:
    """Return the URL of the Ollama that OLLAMA_HOST names, with the defaults that Ollama has."""
    scheme, _, rest = host.strip().rpartition("://")
    try:
        parts = urlsplit(f"{scheme or 'http'}://{rest}")
        port = parts.port or {"http": 80, "https": 443}.get(scheme, OLLAMA_PORT)
    except ValueError as error:
        raise ValueError(f"OLLAMA_HOST must be HOST, HOST:PORT or a URL, not {host!r}.") from error
    name = parts.hostname or "127.0.0.1"
    # What a server listens on everywhere, a client finds on loopback.
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)
    if ":" in name:
        name = f"[{name}]"
    return f"{parts.scheme}://{name}:{port}{parts.path.rstrip('/')}"


def listens(url: str) -> bool:
    """Return whether something accepts connections at the URL's host and port."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
