"""YAML with places: every value's line and column is known, and whatever is wrong with a file is an `InputError`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_fleet.playbook.source import dotted, parse_document, read_document
from lmcache_fleet.problems import InputError, Problem, nearest


def refused(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_document(text, "f.yaml")
    return [str(problem) for problem in caught.value.problems]


SCALARS = st.none() | st.booleans() | st.integers(-99, 99) | st.text("ab #:{}'\"-", max_size=6)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc-", min_size=1, max_size=4), inner),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(TREES, st.booleans())
def test_data_is_what_yaml_says_and_every_path_has_a_place(tree: Any, flow: bool) -> None:
    text = yaml.safe_dump({"top": tree}, default_flow_style=flow)
    document = parse_document(text, "f.yaml")
    assert document.data == {"top": tree}

    lines = text.splitlines()

    def walk(value: Any, path: tuple[str | int, ...]) -> None:
        line, column = document.marks[path]
        assert 1 <= line <= len(lines)
        assert 1 <= column <= len(lines[line - 1]) + 1
        if isinstance(value, dict):
            for key, item in value.items():
                key_line, key_column = document.marks[path + (key,)]  # noqa: RUF005
                shown = lines[key_line - 1][key_column - 1 :].lstrip("'\"? ")
                assert shown.startswith(key[:1]) or key.startswith("-")
                walk(item, (*path, key))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                walk(item, (*path, index))

    walk(document.data, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: a: the key 'a' stands twice"),
        ("x:\n  - {k: 1, k: 2}\n", "f.yaml:2:12: x[0].k: the key 'k' stands twice"),
        ("x:\n  y:\n    z: 1\n    'z': 2\n", "f.yaml:4:5: x.y.z: the key 'z' stands twice"),
        ("1: a\n1: b\n", "f.yaml:2:1: [1]: the key '1' stands twice"),
    ],
)
def test_a_key_that_stands_twice_is_named_at_its_second_place(text: str, expected: str) -> None:
    assert refused(text) == [expected]


def test_all_doubled_keys_are_named_at_once_in_order() -> None:
    assert [line.split(" ")[0] for line in refused("a: 1\nb: {c: 1, c: 2}\na: 2\n")] == ["f.yaml:2:11:", "f.yaml:3:1:"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "f.yaml:1:1: the file is empty"),
        ("# only a comment\n", "f.yaml:1:1: the file is empty"),
        ("a: [1, 2\n", "f.yaml:2:1: not valid YAML"),
        ("a: 1\n\tb: 2\n", "f.yaml:2:1: not valid YAML"),
        ("a: *nowhere\n", "f.yaml:1:4: not valid YAML"),
        ("a: !!python/name:os.system x\n", "f.yaml:1:4: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: not valid YAML"),
        ("a: 'open\n", "not valid YAML"),
    ],
)
def test_what_is_no_yaml_is_said_with_its_place(text: str, expected: str) -> None:
    (problem,) = refused(text)
    assert expected in problem


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: \x07\n", id="control-character"),
        pytest.param("a: 2024-13-45\n", id="no-such-day"),
        pytest.param("a: !!int x\n", id="no-number"),
        pytest.param("? [a]\n: 1\n", id="unhashable-key"),
        pytest.param("a: &x [*x]\n", id="holds-itself"),
        pytest.param("~: 1\n~: 2\n", id="null-key-twice"),
    ],
)
def test_whatever_is_wrong_is_an_input_error(text: str) -> None:
    assert refused(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: x\x07\n", "f.yaml:2:5: not valid YAML: the character"),
        ("a:\n  - 2024-13-45\n", "f.yaml:2:5: a[0]: '2024-13-45' is no timestamp"),
        ("a: 1\nb: &x {c: *x}\n", "f.yaml:2:4: b.c: a value holds itself"),
        ("v: 0.10\n", "f.yaml:1:4: v: YAML reads 0.10 as the number 0.1"),
        ("v: 010\n", "f.yaml:1:4: v: YAML reads 010 as the number 8"),
        ("v: 22:22\n", "f.yaml:1:4: v: YAML reads 22:22 as the number 1342"),
    ],
)
def test_it_is_told_where_and_what(text: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_document(text, "f.yaml")
    assert str(caught.value).startswith(expected)


def test_a_number_that_is_written_as_it_is_read_stays_one() -> None:
    data = parse_document("a: 0.4\nb: 3.0\nc: 8000\nd: -1\ne: '0.10'\nf: 1e3\n", "f.yaml").data
    assert data == {"a": 0.4, "b": 3.0, "c": 8000, "d": -1, "e": "0.10", "f": "1e3"}


def test_a_value_used_twice_does_not_hold_itself() -> None:
    assert parse_document("a: &x [1]\nb: [*x, *x]\n", "f.yaml").data == {"a": [1], "b": [[1], [1]]}


def test_merge_keys_and_anchors_are_resolved() -> None:
    document = parse_document("base: &b {x: 1, y: 2}\nother: {<<: *b, z: 3}\n", "f.yaml")
    assert document.data["other"] == {"x": 1, "y": 2, "z": 3}


def test_a_problem_without_a_place_of_its_own_is_put_at_its_nearest_ancestor() -> None:
    document = parse_document("steps:\n  - venv: {python: '3.12'}\n", "f.yaml")
    assert str(document.problem(("steps", 0, "venv", "absent"), "m")) == "f.yaml:2:5: steps[0].venv.absent: m"
    assert str(document.problem(("nothing", 7), "m")) == "f.yaml:1:1: nothing[7]: m"


@pytest.mark.parametrize(
    ("location", "expected"),
    [((), ""), (("a",), "a"), (("a", 0, "b"), "a[0].b"), ((0, "a"), "[0].a"), (("a", "b", 1, 2), "a.b[1][2]")],
)
def test_paths_are_written_dotted(location: tuple[str | int, ...], expected: str) -> None:
    assert dotted(location) == expected


def test_files_that_cannot_be_read_are_said_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.yaml: can't read the file: No such file"):
        read_document(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="can't read the file: Is a directory"):
        read_document(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_document(tmp_path / "latin.yaml")


def test_nearest_names_one_or_lists_all() -> None:
    assert nearest("pyton", ["python", "uv"]) == " (did you mean 'python'?)"
    assert nearest("zzz", ["b", "a"]) == " (known: a, b)"
    assert nearest("zzz", []) == ""


def test_problems_stand_in_document_order() -> None:
    error = InputError([Problem("f", 3, 1, "", "c"), Problem("f", 1, 2, "", "b"), Problem("f", 1, 1, "", "a")])
    assert [problem.message for problem in error.problems] == ["a", "b", "c"]
    assert str(error) == "f:1:1: a\nf:1:2: b\nf:3:1: c"
