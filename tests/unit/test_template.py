"""Templates in a playbook: types stay, undefined names are named with the nearest one, `by_arch` picks and splices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_fleet.playbook.source import Document, parse_document
from lmcache_fleet.playbook.template import names_used, render, render_variables
from lmcache_fleet.problems import InputError

EMPTY = Document("f.yaml", {}, {(): (1, 1)})
VARIABLES = {
    "arch": "aarch64",
    "text": "t",
    "number": 3,
    "flag": True,
    "nothing": None,
    "items": [1, "b"],
    "m": {"k": 1},
}


def rendered(value: Any) -> Any:
    return render(value, VARIABLES, EMPTY)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("{{ text }}", "t"),
        ("{{ number }}", 3),
        (" {{ number + 1 }} ", 4),
        ("{{ flag }}", True),
        ("{{ not flag }}", False),
        ("{{ nothing }}", None),
        ("{{ items }}", [1, "b"]),
        ("{{ m.k }}", 1),
        ("{{ m }}", {"k": 1}),
        ("v{{ number }}", "v3"),
        ("{{ number }}{{ number }}", "33"),
        ("{{ number }} and {{ text }}", "3 and t"),
        ("{% if flag %}yes{% endif %}", "yes"),
        ("{{ '}' }}", "}"),
        ("line\n", "line\n"),
        ("${HOME} %h {x}", "${HOME} %h {x}"),
    ],
)
def test_one_expression_keeps_its_type_and_all_else_is_text(text: str, expected: Any) -> None:
    found = rendered(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ numbr }}", "'numbr' is undefined (did you mean 'number'?)"),
        ("a-{{ txt }}", "'txt' is undefined (did you mean 'text'?)"),
        ("{{ numbr + 1 }}", "'numbr' is undefined (did you mean 'number'?)"),
        ("{% if flga %}x{% endif %}", "'flga' is undefined (did you mean 'flag'?)"),
        ("{{ m.absent }}", "has no attribute 'absent'"),
        ("{{ m.absent.more }}", "has no attribute 'absent'"),
        ("{{ number / 0 }}", "can't be rendered"),
        ("{{ text + 1 }}", "can't be rendered"),
        ("{{ }}", "can't be rendered"),
        ("{{ number", "can't be rendered"),
        ("{{ text | nofilter }}", "can't be rendered"),
        ("{% for %}", "can't be rendered"),
        ("{% include 'x' %}", "can't be rendered"),
    ],
)
def test_a_bad_template_is_named_with_its_place(text: str, expected: str) -> None:
    document = parse_document(f"top:\n  - key: {text!r}\n", "f.yaml")
    with pytest.raises(InputError) as caught:
        render(document.data, VARIABLES, document)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.column, problem.where) == ("f.yaml", 2, 5, "top[0].key")
    assert expected in problem.message


@pytest.mark.parametrize(
    "text",
    [
        "{{ ().__class__.__mro__ }}",
        "{{ text.__class__ }}",
        "{{ text.format.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "x{{ ''.__class__.__base__.__subclasses__() }}",
    ],
)
def test_templates_are_sandboxed(text: str) -> None:
    with pytest.raises(InputError):
        rendered(text)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        rendered({"a": "{{ x }}", "b": ["{{ y }}", "{{ number }}", {"c": "{{ z }}"}]})
    assert [problem.where for problem in caught.value.problems] == ["a", "b[0]", "b[2].c"]


BY_ARCH = {"by_arch": {"x86_64": "x", "aarch64": "{{ number }}"}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (BY_ARCH, 3),
        ([BY_ARCH], [3]),
        ([0, {"by_arch": {"x86_64": [], "aarch64": [1, 2]}}, 9], [0, 1, 2, 9]),
        ([0, {"by_arch": {"x86_64": [5], "aarch64": []}}, 9], [0, 9]),
        ({"k": {"by_arch": {"aarch64": [1]}}}, {"k": [1]}),
        ([["by_arch"]], [["by_arch"]]),
        ([{"by_arch": {"aarch64": [[1], [2]]}}], [[1], [2]]),
        ({"by_arch": {"aarch64": {"by_arch": {"aarch64": "deep"}}}}, "deep"),
        ([{"by_arch": {"aarch64": {"k": 1}}}], [{"k": 1}]),
        # Only a mapping of that one key is a choice.
        ({"by_arch": {"aarch64": 1}, "other": 2}, {"by_arch": {"aarch64": 1}, "other": 2}),
        # A list that a template gives is a value, and no branch.
        (["{{ items }}"], [[1, "b"]]),
    ],
)
def test_by_arch_picks_and_splices(value: Any, expected: Any) -> None:
    assert rendered(value) == expected


def test_an_architecture_without_a_branch_is_named() -> None:
    document = parse_document("a:\n  by_arch: {aarch46: 1, x86_64: 2}\n", "f.yaml")
    with pytest.raises(
        InputError, match=r"f\.yaml:2:3: a\.by_arch: no branch .*'aarch64' \(did you mean 'aarch46'\?\)"
    ):
        render(document.data, VARIABLES, document)


def test_the_branch_not_taken_is_not_rendered() -> None:
    assert rendered({"by_arch": {"aarch64": 1, "x86_64": "{{ undefined_name }}"}}) == 1


def test_a_variable_may_use_those_above_it_only() -> None:
    raw = {"a": "1", "b": "{{ a }}2", "c": "{{ b }}3"}
    assert render_variables(raw, {"arch": "x86_64"}, EMPTY)["c"] == "123"
    assert render_variables(raw, {"arch": "x86_64", "a": "9"}, EMPTY)["c"] == "923"
    with pytest.raises(InputError, match="'later' is undefined"):
        render_variables({"a": "{{ later }}", "later": 1}, {"arch": "x86_64"}, EMPTY)


def test_an_override_is_a_value_and_no_template() -> None:
    assert render_variables({"a": 1}, {"arch": "x86_64", "a": "{{ x }}"}, EMPTY)["a"] == "{{ x }}"


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_characters="{%", codec="utf-8")),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
        max_leaves=10,
    )
)
def test_data_without_templates_comes_through_as_it_is(value: Any) -> None:
    assert rendered(value) == value
    assert render("{{ it }}", {"it": value}, EMPTY) == value


@settings(max_examples=150, deadline=None)
@given(st.text("{}%| .ab'\"[]()+-#\n", max_size=16).map(lambda text: "{{" + text))
def test_any_text_is_rendered_or_refused_with_its_place(text: str) -> None:
    try:
        rendered({"a": text})
    except InputError as error:
        assert error.problems[0].where == "a"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("plain", set()),
        ("{{ host }}", {"host"}),
        ({"a": ["x", {"b": "{{ host }}-{{ port | int }}"}]}, {"host", "port"}),
        ("{% for host in hosts %}{{ host }}{% endfor %}", {"hosts"}),
        ("{{ broken", set()),
        (["{{ a }}", 3, None, True], {"a"}),
    ],
)
def test_names_that_templates_use(value: Any, names: set[str]) -> None:
    assert names_used(value) == names
