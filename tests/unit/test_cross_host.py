"""Two hosts' halves make one evidence, and whatever is missing in either fails it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lmcache_fleet.cross_host import combine
from lmcache_fleet.evidence import Evidence, Incident, Request, judge_part, render

CONNECTOR = "LMCacheMPConnector"


def half(*requests: Request) -> Evidence:
    evidence = Evidence("service", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", {"lmcache": "0.5.6"}, "cpu")
    evidence.connector = {"class": CONNECTOR, "module": None, "source": "log"}
    evidence.chunk_size = 128
    evidence.hash_seeds = {"service/vllm": "0"}
    evidence.requests = list(requests)
    return evidence


def halves() -> tuple[Evidence, Evidence]:
    cold = Request("cold", 521, [1, 2, 3, 4], stored=512, external_hits=0, local_hits=0)
    reference = Request("reference", 521, [1, 2, 3, 5], stored=0, external_hits=0, local_hits=512)
    hit = Request("hit", 521, [1, 2, 3, 5], stored=0, external_hits=512, local_hits=0)
    return half(cold, reference), half(hit)


def judged(store: Evidence, retrieve: Evidence) -> set[str]:
    whole = combine(store, retrieve, ("h1", "h2"), CONNECTOR)
    assert whole.ok() == (not any(finding.severity == "error" for finding in whole.findings))
    return {finding.id for finding in whole.findings}


def test_what_one_host_stored_and_another_retrieved_is_proven() -> None:
    store, retrieve = halves()
    assert judge_part(store) == judge_part(retrieve) == []
    assert judged(store, retrieve) == set()
    whole = combine(store, retrieve, ("h1", "h2"), CONNECTOR)
    assert whole.as_json()["tokens"]["hit_after_reset"] == 512
    assert set(whole.hash_seeds) == {"h1/service/vllm", "h2/service/vllm"}
    assert "PROVEN   mode cross-host" in render(whole)
    assert Evidence.from_json(whole.as_json()).ok()


def _nothing_found(store: Evidence, retrieve: Evidence) -> None:
    retrieve.requests[0].external_hits = 0


def _known_there_already(store: Evidence, retrieve: Evidence) -> None:
    retrieve.requests[0].external_hits, retrieve.requests[0].local_hits = 0, 512


def _other_seed(store: Evidence, retrieve: Evidence) -> None:
    retrieve.hash_seeds = {"service/vllm": "1"}


def _other_answer(store: Evidence, retrieve: Evidence) -> None:
    retrieve.requests[0].output = [9, 9, 9, 8]


def _nothing_stored(store: Evidence, retrieve: Evidence) -> None:
    store.requests[0].stored = 0


def _no_answer(store: Evidence, retrieve: Evidence) -> None:
    retrieve.requests = []
    retrieve.incidents.append(Incident("request-failed", "hit", "HTTP 500"))


def _other_connector(store: Evidence, retrieve: Evidence) -> None:
    retrieve.connector["class"] = None


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (_nothing_found, "no-hit-across-hosts"),
        (_known_there_already, "hit-from-engine-prefix-cache"),
        (_other_seed, "hashseed-differs"),
        (_other_answer, "outputs-differ"),
        (_nothing_stored, "nothing-stored"),
        (_no_answer, "request-failed"),
        (_other_connector, "connectors-differ"),
    ],
)
def test_what_is_missing_in_either_half_fails_it(spoil: Callable[[Evidence, Evidence], None], finding: str) -> None:
    store, retrieve = halves()
    spoil(store, retrieve)
    assert finding in judged(store, retrieve)
    assert not combine(store, retrieve, ("h1", "h2"), CONNECTOR).ok()


def test_other_versions_on_the_two_hosts_are_said() -> None:
    store, retrieve = halves()
    retrieve.versions["lmcache"] = "0.5.7"
    assert judged(store, retrieve) == {"versions-differ"}
