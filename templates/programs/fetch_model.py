"""Fetch a model from a hub or its mirror at a fixed revision, with a manifest. Runs with the release's python."""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path


def sha256(path: Path) -> str:
    """Hash of a file, read in pieces."""
    seen = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            seen.update(block)
    return seen.hexdigest()


def main() -> int:
    """Fetch, then list every file with size and hash."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--repo", required=True)
    parser.add_argument("--revision", required=True)
    parser.add_argument("--endpoint")
    options = parser.parse_args()
    if options.endpoint:
        os.environ["HF_ENDPOINT"] = options.endpoint
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    # Imported only now: the library reads its environment when it is imported.
    from huggingface_hub import snapshot_download

    snapshot_download(options.repo, revision=options.revision, local_dir=options.out)
    files = sorted(path for path in options.out.rglob("*") if path.is_file() and ".cache" not in path.parts)
    manifest = {
        "repo": options.repo,
        "revision": options.revision,
        "files": {
            str(path.relative_to(options.out)): {"size": path.stat().st_size, "sha256": sha256(path)} for path in files
        },
    }
    (options.out / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
    print(f"fetched {len(files)} files of {options.repo}", file=sys.stderr)
    return 0


sys.exit(main())
