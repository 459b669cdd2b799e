"""The package's rooms: each is read in one sitting, and imports go downwards only."""

import ast
from graphlib import TopologicalSorter

import pytest

from local.superlink import CHECKOUT

ROOMS = {path.stem: path.read_text() for path in (CHECKOUT / "research_agent").glob("[!_]*.py")}


def imported(source: str) -> set[str]:
    """Return the rooms that a source imports from."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    modules = [node.module.split(".") for node in nodes if node.module and not node.level]
    return {module[-1] for module in modules if module[0] == "research_agent"}


def test_imports_between_the_rooms_go_downwards_and_none_is_of_the_app() -> None:
    graph = {room: imported(source) for room, source in ROOMS.items()}
    assert set().union(*graph.values()) == set(ROOMS) - {"agent_app"}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_read_in_one_sitting_and_says_what_it_is_for(room: str) -> None:
    assert ROOMS[room].count("\n") <= 650
    assert ast.get_docstring(ast.parse(ROOMS[room]))
