"""The demo on a machine that it converged before: nothing to change, and the evidence shown."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PREFIX = os.environ.get("LMCACHE_FLEET_REAL_PREFIX", "")

pytestmark = pytest.mark.skipif(not PREFIX, reason="scripts/test gives LMCACHE_FLEET_REAL_PREFIX, a converged prefix")


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/demo", "--prefix", PREFIX, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


def test_second_run_changes_nothing_and_shows_the_evidence() -> None:
    began = time.monotonic()
    done = demo()
    assert done.returncode == 0, done.stderr
    assert "no changes" in done.stdout
    assert "KV offload PROVEN" in done.stdout
    assert time.monotonic() - began < 60


def test_damage_to_a_sealed_release_is_mended_beside_it() -> None:
    """The plan names the lost package and a new revision; the sealed release stays as it is."""
    current = Path(PREFIX) / "current"
    serving = current.resolve()
    lost = next(serving.glob("venv/lib/python3.*/site-packages/lmcache-*.dist-info"))
    aside = lost.with_name("aside")
    lost.rename(aside)
    try:
        command = [str(Path(sys.executable).with_name("pyinfra")), "inventories/local.py", "deploys/cpu.py"]
        environment = {**os.environ, "LMCACHE_FLEET_PREFIX": PREFIX}
        done = subprocess.run(
            [*command, "--dry", "--diff"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"{serving.name} → {serving.name}-r2" in done.stderr
        assert "is no longer as it was sealed: + lmcache" in done.stderr
        assert current.resolve() == serving
    finally:
        aside.rename(lost)


def test_clean_refuses_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x", encoding="utf-8")
    command = [sys.executable, "scripts/demo", "--clean", "--prefix", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "not removed" in done.stderr
    assert (tmp_path / "precious").exists()
