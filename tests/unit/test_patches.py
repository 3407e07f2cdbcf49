"""Patches as data: applied once, seen when present, left out for other refs, refused with the nearest lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lmcache_fleet.patches import apply_patch
from lmcache_fleet.playbook.load import check_document, read_playbook
from lmcache_fleet.playbook.model import Patch, SourceStep

PATCH = Patch(path="d/f.txt", find="old(1)\n", replace="new(2)\n", present=[r"^new\(\d\)$"], refs=["v0.4.*", "main"])


def test_it_is_applied_with_a_diff_of_only_its_lines() -> None:
    result = apply_patch(PATCH, "a\nold(1)\nb\n", "v0.4.4")
    assert (result.state, result.text, result.nearest) == ("applied", "a\nnew(2)\nb\n", ())
    assert result.diff[:2] == ("--- a/d/f.txt", "+++ b/d/f.txt")
    assert [line for line in result.diff[2:] if line[0] in "+-"] == ["-old(1)", "+new(2)"]


def test_a_second_time_it_is_there() -> None:
    once = apply_patch(PATCH, "old(1)\n", "main")
    twice = apply_patch(PATCH, once.text, "main")
    assert (twice.state, twice.text, twice.diff) == ("present", once.text, ())


def test_present_wins_over_the_anchor() -> None:
    text = "new(7)\nold(1)\n"
    assert apply_patch(PATCH, text, "main").text == text
    assert apply_patch(PATCH, "xnew(7)\nold(1)\n", "main").state == "applied"


@pytest.mark.parametrize("ref", ["v0.5.0", "xmain", "main2", "V0.4.1", ""])
def test_another_ref_needs_it_not(ref: str) -> None:
    result = apply_patch(PATCH, "neither\n", ref)
    assert (result.state, result.text) == ("not-needed", "neither\n")


def test_without_refs_every_ref_needs_it() -> None:
    assert apply_patch(Patch(path="f", find="a", replace="b"), "a", "anything").state == "applied"


def test_only_the_first_of_several_places_is_changed() -> None:
    assert apply_patch(Patch(path="f", find="a", replace="b"), "a a a", "r").text == "b a a"


def test_a_refusal_shows_the_nearest_lines_with_their_numbers() -> None:
    lines = [f"line {number}" for number in range(1, 10)]
    lines[4] = "    old(11)"
    result = apply_patch(PATCH, "\n".join(lines), "main")
    assert result.state == "refused"
    assert result.text == "\n".join(lines)
    assert result.diff == ()
    assert result.nearest == ("3: line 3", "4: line 4", "5:     old(11)", "6: line 6", "7: line 7")


@pytest.mark.parametrize("text", ["", "\n\n", "x", "old(1)"])
def test_a_refusal_of_little_text_is_still_a_refusal(text: str) -> None:
    result = apply_patch(PATCH, text, "main")
    assert (result.state, result.text) == ("refused", text)


def test_an_anchor_of_blank_lines_only_is_refused_too() -> None:
    assert apply_patch(Patch(path="f", find="\n\n\n", replace=""), "x\ny\n", "r").state == "refused"


def test_a_file_with_other_line_ends_keeps_them_and_takes_the_patch() -> None:
    patch = Patch(path="f", find="one\ntwo\n", replace="1\n2\n", present=["^2$"])
    result = apply_patch(patch, "zero\r\none\r\ntwo\r\nthree\r\n", "r")
    assert (result.state, result.text) == ("applied", "zero\r\n1\r\n2\r\nthree\r\n")
    assert apply_patch(patch, result.text, "r").state == "present"


LINES = st.lists(st.sampled_from(["old(1)", "old(2)", "new(2)", "", "é"]), max_size=6).map(
    lambda x: "\n".join(x) + "\n"
)


@settings(max_examples=100, deadline=None)
@given(LINES, st.sampled_from(["main", "v0.4.9", "v1"]))
def test_any_text_ends_in_one_of_four_states_and_stays_there(text: str, ref: str) -> None:
    first = apply_patch(PATCH, text, ref)
    assert (first.text == text) is (first.state != "applied")
    assert bool(first.diff) is (first.state == "applied")
    again = apply_patch(PATCH, first.text, ref)
    assert again.text == first.text
    assert again.state == ("present" if first.state == "applied" else first.state)


@pytest.mark.parametrize(
    "fields",
    [
        {"path": "/etc/passwd", "find": "a", "replace": "b"},
        {"path": "f", "find": "", "replace": "b"},
        {"path": "f", "find": "a", "replace": "b", "present": ["("]},
        {"path": "", "find": "a", "replace": "b"},
        {"path": "f", "find": "a"},
        {"path": "../../outside", "find": "a", "replace": "b"},
    ],
)
def test_what_is_no_patch_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Patch.model_validate(fields)


def test_our_patches_know_themselves_when_applied() -> None:
    seen = 0
    for path in sorted((Path(__file__).resolve().parents[2] / "playbooks").glob("*.yaml")):
        for step in check_document(read_playbook(path)).steps:
            for patch in step.patches if isinstance(step, SourceStep) else []:
                assert isinstance(step, SourceStep)
                once = apply_patch(patch, f"before\n{patch.find}\nafter\n", step.ref)
                assert once.state == "applied", patch.path
                assert apply_patch(patch, once.text, step.ref).state == "present", patch.path
                seen += 1
    assert seen
