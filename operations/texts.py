"""Text files of a release: written in one command, each in place at once."""

from __future__ import annotations

from collections.abc import Mapping

from facts.releases import Releases
from lmcache_fleet.changes import Change
from lmcache_fleet.shell import script, words, write_file
from operations.faults import Commands
from operations.plan import HostPlan
from operations.session import Session


def write_texts(
    session: Session,
    plan: HostPlan,
    changes: list[Change],
    texts: Mapping[str, str],
    executable: frozenset[str] = frozenset(),
) -> Commands:
    """Bring a release's text files to their wanted content.

    Args:
        session: the host's session.
        plan: the host's plan.
        changes: what differs; nothing is written when empty.
        texts: path below the release → text.
        executable: those of them that are started.
    """
    if not session.show(changes):
        session.host.noop(f"as wanted: {', '.join(texts)}")
        return
    release = session.layout.release(plan.target.name)
    folders = sorted({release.file(path).rsplit("/", 1)[0] for path in texts})
    writes = [
        write_file(release.file(path), text, "0755" if path in executable else "0644") for path, text in texts.items()
    ]
    yield session.remote(script(f"umask 022; mkdir -p {words(*folders)}", *writes))
    session.forget(Releases)
