"""Makes the bare git repositories that the lab serves, with the same commit ids on every machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.packages import builds
from lab.shell import LabError

HERE = Path(__file__).resolve().parent
_DATE = 1785000000  # any fixed moment; each commit is a day later than the one before
_NOT_IN_MP_LINE = ("lmcache_ascend/integration", "lmcache_ascend/standin")
_IDENTITY = {
    "GIT_AUTHOR_NAME": "Lab",
    "GIT_AUTHOR_EMAIL": "lab@example.invalid",
    "GIT_COMMITTER_NAME": "Lab",
    "GIT_COMMITTER_EMAIL": "lab@example.invalid",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
}


class _Repository:
    """A work tree that ends as a bare repository."""

    def __init__(self, work: Path, day: int = 0) -> None:
        self.work = work
        self.day = day
        work.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str) -> str:
        """Runs git without anybody's own settings."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        env.update(_IDENTITY)
        date = f"{_DATE + 86400 * self.day} +0000"
        env["GIT_AUTHOR_DATE"] = env["GIT_COMMITTER_DATE"] = date
        done = subprocess.run(["git", *words], cwd=self.work, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(f"git {' '.join(words)} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def commit(self, message: str, trees: list[Path], replace: dict[str, str] | None = None) -> str:
        """Makes the tree be *trees* laid over one another, and commits it."""
        for entry in self.work.iterdir():
            if entry.name != ".git":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for tree in trees:
            ignore = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "*.so")
            shutil.copytree(tree, self.work, dirs_exist_ok=True, ignore=ignore)
        for path in self.work.rglob("*"):
            if path.is_file() and ".git" not in path.relative_to(self.work).parts:
                path.chmod(0o644)
                for old, new in (replace or {}).items():
                    text = path.read_text()
                    if old in text:
                        path.write_text(text.replace(old, new))
        self.day += 1
        # Without its index git hashes every file. With it, a file replaced by one of the same size within the same
        # second (copies keep their times) may pass for unchanged, and the commit ids differ from run to run.
        (self.work / ".git" / "index").unlink(missing_ok=True)
        self.git("add", "--all", "--force")
        return self._commit(message)

    def _commit(self, message: str) -> str:
        self.git("commit", "--quiet", "--allow-empty", f"--message={message}")
        return self.git("rev-parse", "HEAD")

    def commit_with_submodules(
        self, message: str, trees: list[Path], submodules: dict[str, str], drop: Sequence[str] = ()
    ) -> str:
        """The same with gitlinks (path -> commit), and without the paths in *drop*."""
        self.commit(message, trees)
        if drop:
            self.git("rm", "-r", "--quiet", "--", *drop)
        for path, commit in submodules.items():
            self.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
        self.git("commit", "--quiet", "--amend", f"--message={message}")
        return self.git("rev-parse", "HEAD")

    def publish(self, bare: Path) -> None:
        """Writes the bare repository."""
        bare.parent.mkdir(parents=True, exist_ok=True)
        self.git("clone", "--quiet", "--bare", "--no-hardlinks", str(self.work), str(bare))
        self.git("-C", str(bare), "config", "http.receivepack", "false")
        self.git("-C", str(bare), "config", "uploadpack.allowReachableSHA1InWant", "true")
        self.git("-C", str(bare), "update-server-info")


def _lmcache(work: Path, bare: Path) -> str:
    """LMCache itself, for builds on other cards than Ascend's."""
    tree = work.with_name("LMCache-tree")
    for path, data in builds.lmcache_sources("0.5.6").items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(data)
    package = tree / "lmcache"
    (package / "backend.py").unlink()
    (package / "backend.in").write_text(builds.backend("@KERNELS@", "@DEVICE@"))
    version = 'from importlib.metadata import version\n\n__version__ = version("lmcache")\n'
    (package / "version.py").write_text(version)
    # As with the real one: torch's symbols are there when the native modules are loaded.
    (package / "__init__.py").write_text((package / "__init__.py").read_text() + "\nimport torch\n")
    repository = _Repository(work, day=20)
    commit = repository.commit("LMCache stand-in 0.5.6", [tree, builds.LMCACHE_SOURCE])
    repository.git("tag", "--annotate", "v0.5.6", "--message=v0.5.6")
    repository.publish(bare)
    return commit


def build(out: Path) -> dict[str, str]:
    """Writes the repositories below *out*; gives the commit ids by name.

    ``LMCache/LMCache.git`` has the tag v0.5.6, ``LMCache/LMCache-Ascend.git`` the tags v0.4.3, v0.4.4, v0.5.6 and
    the branch dsv4_support_045; its submodules lie beside it. The same repositories are reachable without ``LMCache/``.
    """
    commits: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        fresh = temporary / "out"
        kernels = _Repository(temporary / "kvcache-ops")
        for variant in ("old", "new"):
            trees = [HERE / "kvcache_ops/base", HERE / "kvcache_ops" / variant]
            commits[f"kvcache-ops-{variant}"] = kernels.commit(f"kvcache-ops stand-in, {variant}", trees)
        kernels.publish(fresh / "LMCache/kvcache-ops.git")
        hcomm = _Repository(temporary / "hcomm")
        for version in ("8.5.0", "9.0.0", "9.1.0"):
            tree, replace = [HERE / "hcomm/base"], {"@VERSION@": version}
            commits[f"hcomm-{version}"] = hcomm.commit(f"hcomm stand-in {version}", tree, replace)
            hcomm.git("tag", "--annotate", f"v{version}", f"--message=v{version}")
        hcomm.publish(fresh / "LMCache/hcomm.git")
        main = _Repository(temporary / "LMCache-Ascend", day=10)
        base = HERE / "lmcache_ascend/base"
        lines = {
            "v0.4.3": {"third_party/kvcache-ops": commits["kvcache-ops-old"]},
            "v0.4.4": {
                "third_party/kvcache-ops": commits["kvcache-ops-new"],
                "third_party/hcomm": commits["hcomm-8.5.0"],
            },
            "dsv4_support_045": {
                "third_party/kvcache-ops": commits["kvcache-ops-new"],
                "third_party/hcomm": commits["hcomm-9.1.0"],
            },
            "v0.5.6": {
                "third_party/kvcache-ops": commits["kvcache-ops-new"],
                "third_party/hcomm": commits["hcomm-9.1.0"],
            },
        }
        for line, submodules in lines.items():
            if line == "v0.5.6":
                main.git("checkout", "--quiet", "main")
            elif not line.startswith("v"):
                main.git("checkout", "--quiet", "-b", line)
            trees = [base, HERE / "lmcache_ascend" / line]
            drop = _NOT_IN_MP_LINE if line == "v0.5.6" else ()
            message = f"LMCache-Ascend stand-in {line}"
            commits[line] = main.commit_with_submodules(message, trees, submodules, drop)
            if line.startswith("v"):
                main.git("tag", "--annotate", line, f"--message={line}")
        main.git("checkout", "--quiet", "main")
        main.publish(fresh / "LMCache/LMCache-Ascend.git")
        commits["LMCache-v0.5.6"] = _lmcache(temporary / "LMCache", fresh / "LMCache/LMCache.git")
        for repository in ("LMCache", "LMCache-Ascend", "kvcache-ops", "hcomm"):
            (fresh / f"{repository}.git").symlink_to(f"LMCache/{repository}.git")
        if out.exists():
            shutil.rmtree(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(fresh, out, symlinks=True)
    return commits
