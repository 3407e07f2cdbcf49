"""Surveys through a real shell: whatever one part does, the others' output and exit codes stay their own."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_fleet.survey import PartOutput, compose, split


def run(script: str, shell: str = "sh") -> list[str]:
    done = subprocess.run(
        [shell, "-c", script], input="stdin of the caller\n", capture_output=True, text=True, timeout=20
    )
    return done.stdout.split("\n")[:-1]


def survey(*commands: str) -> list[PartOutput]:
    parts = split(run(compose(commands)))
    assert sorted(parts) == list(range(len(commands)))
    return [parts[index] for index in range(len(commands))]


@pytest.mark.parametrize(
    ("command", "lines", "code"),
    [
        ("echo one", ("one",), 0),
        ("true", (), 0),
        ("false", (), 1),
        ("exit 7", (), 7),
        ("echo a; exit 3; echo never", ("a",), 3),
        ("set -e; false; echo never", (), 1),
        ("set -u; echo $undefined_thing", (), 2),
        ("no-such-command-here 2>/dev/null", (), 127),
        ("printf 'no newline'", ("no newline",), 0),
        ("printf 'a\\nno newline'; exit 4", ("a", "no newline"), 4),
        ("printf 'blank lines stay\\n\\n\\n'", ("blank lines stay", "", ""), 0),
        ("echo", ("",), 0),
        ("printf '\\n\\n'", ("", ""), 0),
        ("cat", (), 0),
        ("echo it # a comment", ("it",), 0),
        ("cat <<X\nhere\nX", ("here",), 0),
        ("echo a\necho b", ("a", "b"), 0),
        ("kill -9 $(sh -c 'echo $PPID')", (), 137),
        ("exec echo replaced", ("replaced",), 0),
        ("trap 'echo trapped' EXIT; exit 5", ("trapped",), 5),
        ("echo '@@lmcache-fleet-begin 2'", ("@@lmcache-fleet-begin 2",), 0),
        ("echo '@@lmcache-fleet-end 0 0'", ("@@lmcache-fleet-end 0 0",), 0),
        ("echo '@@lmcache-fleet-end 2 9'", ("@@lmcache-fleet-end 2 9",), 0),
        ("printf '@@lmcache-fleet-end 1 '", ("@@lmcache-fleet-end 1 ",), 0),
        ("echo ' @@lmcache-fleet-end 1 0'", (" @@lmcache-fleet-end 1 0",), 0),
        ("cd /; X=leaked; umask 000; set -x 2>/dev/null", (), 0),
    ],
)
def test_a_part_between_two_others_has_its_own_output_and_leaves_theirs(
    command: str, lines: tuple[str, ...], code: int
) -> None:
    before, seen, after = survey("echo before", command, 'echo "after $X"; pwd; umask')
    assert seen == PartOutput(lines, code)
    assert before == PartOutput(("before",), 0)
    assert after.exit_code == 0
    assert after.lines[0] == "after "
    assert after.lines[1] != "/"
    assert after.lines[2] != "0000"


def test_a_long_output_comes_whole() -> None:
    _, seen = survey("true", "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done")
    assert len(seen.lines) == 20000
    assert seen.lines[-1] == "line 19999"


def test_noise_around_the_frames_is_passed_over() -> None:
    lines = ["Last login: yesterday", "", *run(compose(["echo a", "echo b"])), "logout"]
    assert [part.lines for part in split(lines).values()] == [("a",), ("b",)]
    assert split(["Permission denied"]) == {}
    assert split([]) == {}


def test_wherever_the_output_ends_no_part_is_made_up() -> None:
    commands = ["echo one; echo two", "printf x", "exit 3"]
    lines = run(compose(commands))
    whole = split(lines)
    for length in range(len(lines)):
        parts = split(lines[:length])
        for index, part in parts.items():
            # A part is either as it was, or said to be cut off.
            assert part == whole[index] or part.exit_code is None, (length, index)
        done = [index for index, part in parts.items() if part.exit_code is not None]
        assert done == list(range(len(done)))
        assert len(done) < len(commands)


def test_a_script_of_no_parts_is_a_script() -> None:
    assert split(run(compose([]))) == {}


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text("ab \n@#'\"$\\-0 1", max_size=30).filter(lambda text: not text.startswith("@@")),
            st.integers(0, 255),
        ),
        min_size=8,
        max_size=8,
    )
)
def test_any_output_and_exit_code_come_back(parts: list[tuple[str, int]]) -> None:
    commands = [f"printf %s {shlex.quote(text)}; exit {code}" for text, code in parts]
    for seen, (text, code) in zip(survey(*commands), parts, strict=True):
        expected = text.split("\n")
        # A final line break ends its line and begins none.
        assert list(seen.lines) == (expected[:-1] if expected[-1] == "" else expected)
        assert seen.exit_code == code
