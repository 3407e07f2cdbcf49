"""Which release a run works on, what a release's identity is, and which old ones may go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_fleet.digest import canonical_json, digest
from lmcache_fleet.playbook.load import check_document, read_playbook
from lmcache_fleet.playbook.model import Playbook
from lmcache_fleet.release import HostKey, HostReleases, ReleaseState, choose_target, release_spec
from operations.release import expendable

SPEC: dict[str, Any] = {"steps": [1]}
WANTED = digest(SPEC)
KEY = HostKey("x86_64", "debian", "12", "2.36", "Ascend910B3", "9.1.0")


def host(*releases: ReleaseState, current: str | None = None, previous: str | None = None) -> HostReleases:
    return HostReleases(current=current, previous=previous, releases={item.name: item for item in releases})


def release(name: str, spec: str | None = WANTED, *, sealed: bool = True) -> ReleaseState:
    return ReleaseState(name, spec, sealed=sealed)


def whole(_: ReleaseState) -> list[str]:
    return []


def broken(_: ReleaseState) -> list[str]:
    return ["torch is gone"]


def test_the_first_release() -> None:
    target = choose_target(host(), SPEC, whole)
    assert (target.name, target.exists, target.complete, target.why) == (WANTED, False, False, "the first release")


def test_other_steps_are_another_release() -> None:
    old = release("0" * 12, "0" * 12)
    target = choose_target(host(old, current=old.name), SPEC, whole)
    assert (target.name, target.exists, target.why) == (WANTED, False, "the steps or the host changed")


def test_an_interrupted_run_is_resumed() -> None:
    target = choose_target(host(release(WANTED, sealed=False)), SPEC, broken)
    assert (target.name, target.exists, target.complete) == (WANTED, True, False)
    assert target.why == "an earlier run was interrupted"


def test_a_whole_sealed_release_is_complete() -> None:
    target = choose_target(host(release(WANTED), current=WANTED), SPEC, whole)
    assert (target.name, target.exists, target.complete, target.why) == (WANTED, True, True, "")


def test_drift_of_a_sealed_release_is_mended_in_a_revision_beside_it() -> None:
    sealed = release(WANTED)
    target = choose_target(host(sealed, current=WANTED), SPEC, broken)
    assert (target.name, target.exists, target.complete) == (f"{WANTED}-r2", False, False)
    assert target.why == f"{WANTED} is no longer as it was sealed: torch is gone"
    half = release(f"{WANTED}-r2", sealed=False)
    resumed = choose_target(host(sealed, half, current=WANTED), SPEC, broken)
    assert (resumed.name, resumed.exists) == (half.name, True)
    assert "torch is gone" in resumed.why
    third = choose_target(host(sealed, release(half.name), current=half.name), SPEC, broken)
    assert third.name == f"{WANTED}-r3"


def test_the_serving_one_of_two_that_fit_is_taken() -> None:
    releases = (release(WANTED), release(f"{WANTED}-r2"), release(f"{WANTED}-r10"))
    for serving in releases:
        assert choose_target(host(*releases, current=serving.name), SPEC, whole).name == serving.name
    # With none of them serving the newest is; as a number, not as a text.
    assert choose_target(host(*releases, current="other"), SPEC, whole).name == f"{WANTED}-r10"


def test_one_that_is_whole_is_taken_before_a_damaged_serving_one_is_rebuilt() -> None:
    releases = (release(WANTED), release(f"{WANTED}-r2"))
    target = choose_target(
        host(*releases, current=f"{WANTED}-r2"), SPEC, lambda state: ["x"] if state.name.endswith("-r2") else []
    )
    assert (target.name, target.complete) == (WANTED, True)


def test_a_directory_of_that_name_without_a_readable_manifest_is_not_taken_over() -> None:
    target = choose_target(host(release(WANTED, None, sealed=False)), SPEC, whole)
    assert (target.name, target.exists) == (f"{WANTED}-r2", False)


STATES = st.lists(
    st.tuples(st.integers(1, 12), st.booleans(), st.sampled_from([WANTED, WANTED, None, "other"]), st.booleans()),
    unique_by=lambda item: item[0],
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(STATES, st.data())
def test_no_run_ever_works_on_a_sealed_release_or_over_another(
    rows: list[tuple[int, bool, str | None, bool]], data: st.DataObject
) -> None:
    states, bad = {}, set()
    for revision, sealed, spec, damaged in rows:
        name = WANTED if revision == 1 else f"{WANTED}-r{revision}"
        states[name] = ReleaseState(name, spec, sealed=sealed)
        bad |= {name} if damaged else set()
    current = data.draw(st.sampled_from([None, *states]))
    there = HostReleases(current=current, releases=states)
    target = choose_target(there, SPEC, lambda state: ["x"] if state.name in bad else [])
    assert target.spec == WANTED
    assert target.exists is (target.name in states)
    assert bool(target.why) is not target.complete
    if target.complete:
        assert states[target.name].sealed
        assert target.name not in bad
    elif target.exists:
        assert not states[target.name].sealed
    if target.exists:
        assert states[target.name].spec == WANTED
    fitting = [name for name, state in states.items() if state.sealed and state.spec == WANTED and name not in bad]
    assert target.complete is bool(fitting)
    if current in fitting:
        assert target.name == current


# Identity


def playbook(name: str = "ascend", **given_vars: Any) -> Playbook:
    path = Path(__file__).resolve().parents[2] / f"playbooks/{name}.yaml"
    return check_document(read_playbook(path), given_vars)


def test_identity_is_of_the_steps_and_of_the_host() -> None:
    base = digest(release_spec(playbook(), KEY))
    assert base == digest(release_spec(playbook(), KEY))
    assert base != digest(release_spec(playbook(chunk_size=128), KEY))
    for field, value in (("arch", "aarch64"), ("os_version", "13"), ("glibc", "2.41"), ("soc", None), ("toolkit", "x")):
        other = HostKey(**{**KEY.as_json(), field: value})
        assert base != digest(release_spec(playbook(), other)), field


def test_steps_outside_a_release_do_not_change_its_identity() -> None:
    base = playbook()
    outside = [step for step in base.steps if getattr(step, "kind", "") in {"system_packages", "verify"}]
    assert outside
    lean = base.model_copy(update={"steps": [step for step in base.steps if step not in outside]})
    assert release_spec(lean, KEY) == release_spec(base, KEY)
    assert release_spec(base.model_copy(update={"description": "other", "vars": {}}), KEY) == release_spec(base, KEY)


def test_a_step_that_is_left_out_is_not_part_of_it() -> None:
    served, bare = playbook("cpu"), playbook("cpu", service=False)
    kinds = [step["kind"] for step in release_spec(bare, KEY)["steps"]]
    assert "service" not in kinds
    assert release_spec(served, KEY) != release_spec(bare, KEY)
    assert all("when" not in step for step in release_spec(served, KEY)["steps"])


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=4))
def test_digests_do_not_depend_on_order(data: dict[str, Any]) -> None:
    turned = dict(reversed(list(data.items())))
    assert canonical_json(turned) == canonical_json(data)
    assert digest(turned) == digest(data)
    assert len(digest(data, 20)) == 20


# What may go


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 11), st.booleans()), max_size=8),
    st.integers(0, 6),
    st.data(),
)
def test_what_serves_served_or_is_worked_on_never_goes(
    rows: list[tuple[str, int, bool]], keep: int, data: st.DataObject
) -> None:
    releases = {}
    for letter, revision, sealed in rows:
        name = letter if revision == 1 else f"{letter}-r{revision}"
        releases[name] = ReleaseState(name, letter, sealed=sealed)
    pick = st.sampled_from([*releases, None, "gone"])
    there = HostReleases(current=data.draw(pick), previous=data.draw(pick), releases=releases)
    target = data.draw(st.sampled_from([*releases, "new"]))
    doomed = expendable(there, target, keep)
    safe = {there.current, there.previous, target}
    assert not safe & set(doomed)
    assert len(set(doomed)) == len(doomed)
    assert set(doomed) <= set(releases)
    left = set(releases) - set(doomed)
    # No more than asked for stay, and none goes without need.
    assert len(left) <= max(2, keep, len(safe & set(releases)))
    assert len(left) >= min(len(releases), max(2, keep))
    # One that never verified goes before one that did.
    others = [name for name in left if name not in safe]
    if any(releases[name].sealed for name in doomed):
        assert all(releases[name].sealed for name in others)


def test_older_revisions_go_first() -> None:
    releases = [release(f"x-r{number}") for number in (10, 9, 2)] + [release("x")]
    there = host(*releases, current="c", previous="p")
    assert expendable(there, "t", keep=2) == ["x", "x-r2"]


def test_the_oldest_go_first_whatever_they_are_called() -> None:
    times = {"b-r3": "2026-01-01T00:00:00+00:00", "a": "2026-03-01T00:00:00+00:00", "c": "2026-02-01T00:00:00+00:00"}
    releases = {name: ReleaseState(name, name, created=when, sealed=True) for name, when in times.items()}
    there = HostReleases(current="now", previous="before", releases=releases)
    assert expendable(there, "t", keep=2) == ["b-r3"]


# What the probe says


@pytest.mark.parametrize(("works", "python"), [(True, "3.12.1"), (False, None)])
def test_an_interpreter_that_does_not_start_is_none(works: bool, python: str | None) -> None:
    data = {
        "manifest": {"spec": "s"}, "sealed": True, "python": "3.12.1", "interpreter_works": works, "distributions": {},
        "owns": {}, "wheel_tags": {}, "natives": {}, "records": {}, "texts": {}, "evidence": {},
    }  # fmt: skip
    assert ReleaseState.from_json("r", data).python == python
    assert ReleaseState.from_json("r", {**data, "manifest": None}).spec is None


def test_serving_is_what_current_points_to_and_only_when_it_is_there() -> None:
    there = host(release("a"), current="a")
    assert there.serving == release("a")
    assert host(release("a"), current="b").serving is None
    assert host(release("a")).serving is None
