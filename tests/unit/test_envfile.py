"""Environment files: systemd's EnvironmentFile=, a POSIX shell's `.`, and our own reader see the same values."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_fleet.envfile import parse_env, render_env

# What no file can carry is left out: NUL and line breaks; and lone surrogates, which are no text.
VALUES = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=40) | st.text(
    "\\\"$`' #;!*~=&|<>(){}[]?%\t\x07\x7f\x81\x85\u2028é", max_size=12
)
NAMES = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,10}\Z")

NASTY = {
    "EMPTY": "",
    "SPACES": "  leading and trailing  ",
    "QUOTES": "\"double\" 'single'",
    "DOLLAR": "$HOME ${HOME} $(id) `id`",
    "BACKSLASHES": '\\ \\\\ \\n \\$ \\" end\\',
    "HASH": "# no comment ; nor this",
    "EQUALS": "a=b=c",
    "BANG": "!! !x",
    "JSON": '{"a": ["b", "\\u00e9"]}',
    "GLOB": "* ? [a] ~",
    "TAB": "a\tb",
    "UNICODE": "é 漢字 🚀",
    "PERCENT": "%h %% %n",
    "SPECIFIER": "a&&b||c;d>e<f",
    "CONTROL": "bell\x07 escape\x1b[31m delete\x7f",
}


def systemd_reads(text: str) -> dict[str, str]:
    """systemd's `parse_env_file_internal` (src/basic/env-file.c), state for state."""
    found: dict[str, str] = {}
    state, key, value, trailing = "pre-key", "", "", -1

    def push() -> None:
        nonlocal key, value
        found[key.rstrip(" \t")] = value
        key, value = "", ""

    for char in text:
        newline = char in "\n\r"
        if state == "pre-key":
            if char in "#;":
                state = "comment"
            elif char not in " \t\n\r":
                state, key = "key", char
        elif state == "key":
            if newline:
                state, key = "pre-key", ""
            elif char == "=":
                state = "pre-value"
            else:
                key += char
        elif state == "pre-value":
            if newline:
                state = "pre-key"
                push()
            elif char == "'":
                state = "single"
            elif char == '"':
                state = "double"
            elif char == "\\":
                state = "value-escape"
            elif char not in " \t":
                state = "value"
                value += char
        elif state == "value":
            if newline:
                state = "pre-key"
                value = value[:trailing] if trailing >= 0 else value
                push()
                trailing = -1
            elif char == "\\":
                state, trailing = "value-escape", -1
            else:
                trailing = (len(value) if trailing < 0 else trailing) if char in " \t" else -1
                value += char
        elif state == "value-escape":
            state = "value"
            value += "" if newline else char
        elif state == "single":
            if char == "'":
                state = "pre-value"
            else:
                value += char
        elif state == "double":
            if char == '"':
                state = "pre-value"
            elif char == "\\":
                state = "double-escape"
            else:
                value += char
        elif state == "double-escape":
            state = "double"
            value += char if char in '"\\`$' else "" if char == "\n" else "\\" + char
        elif state == "comment" and newline:
            state = "pre-key"
    if key:
        push()
    return found


def shell_reads(folder: Path, texts: list[str]) -> list[dict[str, str]]:
    """Every text read by `.` in a shell of its own, all of them in one process call."""
    for index, text in enumerate(texts):
        (folder / f"{index}.env").write_bytes(text.encode())
    script = (
        f'i=0; while [ $i -lt {len(texts)} ]; do (set -a; . "./$i.env"; env -0); printf "@@end\\0"; i=$((i+1)); done'
    )
    done = subprocess.run(
        ["env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", script], cwd=folder, capture_output=True, check=True
    )
    assert done.stderr == b""
    answers: list[dict[str, str]] = [{}]
    for item in done.stdout.decode().split("\0")[:-1]:
        if item == "@@end":
            answers.append({})
        else:
            name, _, value = item.partition("=")
            answers[-1][name] = value
    return answers[:-1]


def test_nasty_values_reach_all_three_readers(tmp_path: Path) -> None:
    text = render_env(NASTY)
    assert systemd_reads(text) == NASTY
    assert parse_env(text) == NASTY
    (seen,) = shell_reads(tmp_path, [text])
    assert {name: seen.get(name) for name in NASTY} == NASTY


@settings(max_examples=8, deadline=None)
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=6), min_size=25, max_size=25))
def test_any_value_reads_the_same_in_systemd_and_in_a_shell(
    tmp_path_factory: pytest.TempPathFactory, many: list[dict[str, str]]
) -> None:
    many = [{f"T_{name}": value for name, value in variables.items()} for variables in many]
    texts = [render_env(variables) for variables in many]
    assert [systemd_reads(text) for text in texts] == many
    seen = shell_reads(tmp_path_factory.mktemp("env"), texts)
    assert [{k: v for k, v in found.items() if k.startswith("T_")} for found in seen] == many


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_our_own_reader_gets_back_what_was_written(variables: dict[str, str]) -> None:
    assert parse_env(render_env(variables)) == variables


@pytest.mark.parametrize("char", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_what_python_alone_takes_for_a_line_break_is_none(char: str) -> None:
    variables = {"A": f"x{char}y", "B": "z"}
    assert parse_env(render_env(variables)) == variables


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "\n", "trailing\n"])
def test_a_line_break_or_nul_is_refused_by_name_and_not_by_value(value: str) -> None:
    with pytest.raises(ValueError, match="SECRET has a line break or NUL") as caught:
        render_env({"SECRET": f"hunter2{value}"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "1A", "A B", "A-B", "A=B", "É", "A\n", "A\nB", "$A"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a variable name"):
        render_env({name: "x"})


def test_the_text_is_stable_and_sorted() -> None:
    assert render_env({"B": "2", "A": "1"}) == render_env({"A": "1", "B": "2"}) == 'A="1"\nB="2"\n'
    assert render_env({}) == ""


def test_lines_of_another_form_are_passed_over() -> None:
    assert parse_env('# c\nA=bare\nB="b"\nC="open\n D="x"\nexport E="e"\n') == {"B": "b"}
