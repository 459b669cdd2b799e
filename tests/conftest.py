"""Fixtures: no waiting in scripted runs, a Runtime endpoint, a SuperLink for each test process."""

import pytest

from research_agent import agent_app


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scripted run try again and end at once, and keep it off the machine's own Runtime."""
    monkeypatch.setattr(agent_app, "RETRY_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(agent_app, "EVENT_DRAIN_SECONDS", 0.0)
    monkeypatch.delenv("FLWR_RUNTIME_BASE_URL", raising=False)
