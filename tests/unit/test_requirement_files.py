"""Requirements files of a source tree: includes, markers, and what can't be judged."""

from __future__ import annotations

import io
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_fleet.playbook.model import PackagesStep, Playbook
from lmcache_fleet.requirement_files import RequirementsFileError, expanded, read_requirements

ENVIRONMENT = {"python_version": "3.12", "platform_system": "Linux", "platform_machine": "x86_64"}
FILES = {
    "requirements/build.txt": "# mirrors pyproject\n\nninja\npackaging>=24.2  # newer\nsetuptools>=77.0.3,<81.0.0\n",
    "requirements/cuda.txt": "-r common.txt\n--requirement cuda13.txt\n",
    "requirements/common.txt": "aiofile\nnumpy<=2.2.6\n"
    'grpcio-observability==1.78.0; platform_system == "Linux"\nold; python_version < "3.11"\n',
    "requirements/cuda13.txt": "cupy-cuda13x\nnumpy<=2.2.6\n",
    "loop.txt": "-r loop.txt\n",
    "odd.txt": "fine\n--index-url http://evil\n",
    "editable.txt": "-e .\n",
}


def test_comments_includes_and_markers() -> None:
    assert read_requirements(FILES.__getitem__, "requirements/build.txt", ENVIRONMENT) == [
        "ninja", "packaging>=24.2", "setuptools<81.0.0,>=77.0.3",
    ]  # fmt: skip
    assert read_requirements(FILES.__getitem__, "requirements/cuda.txt", ENVIRONMENT) == [
        "aiofile", "numpy<=2.2.6", "grpcio-observability==1.78.0", "cupy-cuda13x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("loop.txt", "includes itself"),
        ("odd.txt", "odd.txt:2: '--index-url http://evil' is no requirement"),
        ("editable.txt", "editable.txt:1"),
    ],
)
def test_what_can_not_be_judged_is_named_by_file_and_line(path: str, said: str) -> None:
    with pytest.raises(RequirementsFileError, match=r"includes itself|no requirement") as caught:
        read_requirements(FILES.__getitem__, path, ENVIRONMENT)
    assert said in str(caught.value)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(RequirementsFileError, KeyError):
        assert isinstance(read_requirements({"f": text}.__getitem__, "f", ENVIRONMENT), list)


def playbook(step: dict[str, object]) -> Playbook:
    return Playbook.model_validate(
        {
            "apiVersion": "lmcache-fleet/v1",
            "name": "t",
            "steps": [
                {"venv": {"python": "3.12"}},
                {"source": {"name": "LMCache", "repo": "r", "ref": "v1"}},
                {"packages": {"name": "build", **step}},
            ],
        }
    )


def archive(tmp_path: Path) -> Path:
    path = tmp_path / "tree.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        for name, text in FILES.items():
            info = tarfile.TarInfo(f"LMCache/{name}")
            info.size = len(text.encode())
            packed.addfile(info, io.BytesIO(text.encode()))
    return path


def test_a_packages_step_wants_what_the_files_say(tmp_path: Path) -> None:
    wanted = {"source": "LMCache", "files": ["requirements/cuda.txt"], "leave_out": ["Cupy_CUDA13x"]}
    before = playbook({"present": ["wheel"], "requirements": wanted})
    after = expanded(before, {"LMCache": archive(tmp_path)}, "x86_64")
    (step,) = after.of_kind(PackagesStep)
    assert step.wanted == ["wheel", "aiofile", "numpy<=2.2.6", "grpcio-observability==1.78.0"]
    assert before.of_kind(PackagesStep)[0].wanted == ["wheel"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequirementsFileError, match=r"no file requirements/x\.txt"):
        expanded(
            playbook({"requirements": {"source": "LMCache", "files": ["requirements/x.txt"]}}),
            {"LMCache": archive(tmp_path)},
            "x86_64",
        )
