"""How many compilers a build may run: cores, and memory less what is spared, over what one needs."""

from __future__ import annotations

import ast

import pytest

from lmcache_fleet.shell import program_source


def job_count(*arguments: float) -> int:
    """The program's own function: the program itself runs when it is imported."""
    tree = ast.parse(program_source("build_wheel.py"))
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "job_count"]
    space: dict[str, object] = {}
    exec(compile(ast.Module([function], []), "build_wheel", "exec"), space)
    return space["job_count"](*arguments)  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize(
    ("cores", "memory", "jobs"),
    # As upstream's resolve_build_parallelism: min(cpus, (memory - 3 GiB) // 3 GiB), one at least.
    [(64, 256, 64), (16, 15.6, 4), (8, 64, 8), (4, 6.1, 1), (4, 2, 1), (32, 33, 10)],
)
def test_as_upstream_bounds_its_own_compilers(cores: int, memory: float, jobs: int) -> None:
    assert job_count(cores, memory, 3.0, 3.0) == jobs == max(1, min(cores, int((memory - 3) // 3)))
