"""Values as shell words, through a real shell: whatever a value is, it arrives as it is and starts nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_fleet.shell import PROGRAMS, exports, program_source, run_program, script, words, write_file

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30) | st.text(
    "'\"\\$`!*?;&|<>(){}[]#~ \n\t-=%", max_size=12
)


def sh(command: str, folder: Path | None = None) -> tuple[int, str]:
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, check=False)
    return done.returncode, done.stdout.decode()


@settings(max_examples=15, deadline=None)
@given(st.lists(TEXT, min_size=10, max_size=20), TEXT)
def test_words_and_exports_arrive_as_they_are(arguments: list[str], value: str) -> None:
    inner = words("sh", "-c", 'printf %s "$VALUE"; printf "\\0%s" "$@"', "sh", *arguments)
    command = f"{exports({'VALUE': value, 'OTHER': 'x'})} {inner}"
    assert sh(command) == (0, "\0".join([value, *arguments]))


@settings(max_examples=15, deadline=None)
@given(text=TEXT)
def test_a_file_is_written_as_it_is(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("w")
    target = folder / 'it\'s $a "file"'
    assert sh(f"umask 022; {write_file(str(target), text, '0640')} && touch after", folder) == (0, "")
    assert target.read_bytes().decode() == text
    assert target.stat().st_mode & 0o777 == 0o640
    assert (folder / "after").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in folder.iterdir()) == sorted(["after", target.name])


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_text("old")
    (tmp_path / "f.new").mkdir()
    assert sh(write_file(str(target), "new"))[0] != 0
    assert target.read_text() == "old"


@pytest.mark.parametrize(
    ("commands", "code", "output"),
    [
        (("echo a", None, "echo b"), 0, "a\nb\n"),
        (("echo a", "false", "echo b"), 1, "a\n"),
        (("false || true", "echo b"), 0, "b\n"),
        (("true; exit 3", "echo b"), 3, ""),
        (("false; true", "echo b"), 0, "b\n"),
        (("cd /", "pwd"), 0, "/\n"),
    ],
)
def test_the_first_failure_ends_a_script(commands: tuple[str | None, ...], code: int, output: str) -> None:
    assert sh(script(*commands)) == (code, output)


def test_nothing_is_nothing() -> None:
    assert (script(), script(None), exports({}), words()) == ("", "", "", "")


def test_a_program_finds_its_request(tmp_path: Path) -> None:
    request = {"prefix": f"{tmp_path}/it's $HOME é", "owns": {}}
    code, output = sh(run_program("probe_releases.py", request))
    assert code == 0
    assert json.loads(output)["releases"] == {}


@pytest.mark.parametrize("name", sorted(path.name for path in PROGRAMS.glob("*.py")))
def test_every_program_is_one(name: str) -> None:
    compile(program_source(name), name, "exec")
    # One argument of a command may have 128 KiB.
    assert max(map(len, run_program(name, {}).split())) < 128 * 1024
