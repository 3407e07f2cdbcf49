"""The container engine, its images, and what of the host decides how containers run."""

from __future__ import annotations

import json
import shlex
from typing import Any

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from lmcache_fleet.containers import DEVICE_PATTERNS, DRIVER_FILES, GROUPS, ContainerHost, Image
from lmcache_fleet.shell import run_program

_TAB = "\t"


class Containers(FactBase[ContainerHost]):
    """What containers can have on this host.

    + engine: `podman` or `docker`
    + devices: further devices to look for
    """

    def command(self, engine: str = "podman", devices: tuple[str, ...] = ()) -> str:
        """The shell command that reads it."""
        tool = shlex.quote(engine)
        shape = shlex.quote("{{.Id}}\t{{json .RepoDigests}}\t{{json .RepoTags}}\t{{json .Config.Labels}}")
        # Patterns are ours and stay open to the shell; what a playbook names is quoted.
        nodes = " ".join([*DEVICE_PATTERNS, *map(shlex.quote, devices)])
        return (
            f"if command -v {tool} >/dev/null 2>&1; then "
            f"printf 'version\\t%s\\n' \"$(timeout 20 {tool} --version 2>/dev/null)\"; "
            f"if ids=$(timeout 60 {tool} images --quiet --no-trunc 2>&1); then "
            "ids=$(printf '%s\\n' \"$ids\" | grep -E '^(sha256:)?[0-9a-f]+$' | sort -u); "
            f'[ -n "$ids" ] && timeout 60 {tool} image inspect --format {shape} $ids 2>/dev/null '
            "| sed 's/^/image\\t/'; "
            "else printf 'problem\\t%s\\n' \"$(printf '%s\\n' \"$ids\" | tail -n 1)\"; fi; fi; "
            f'for d in {nodes}; do [ -e "$d" ] && printf \'device\\t%s\\n\' "$d"; done; '
            f'for f in {" ".join(DRIVER_FILES)}; do [ -e "$f" ] && printf \'file\\t%s\\n\' "$f"; done; '
            f'for g in {" ".join(GROUPS)}; do getent group "$g" '
            "| awk -F: '{printf \"group\\t%s\\t%s\\n\", $1, $3}'; done; "
            "sed -n 's/^[\" ]*kind[\": ]*\\([a-z0-9.-]*\\/[a-z0-9-]*\\).*/cdi\\t\\1/p' "
            "/etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json 2>/dev/null; true"
        )

    def process(self, output: list[str]) -> ContainerHost:
        """Read the command's output."""
        rows = [line.split(_TAB) for line in output if _TAB in line]
        told = {tag: rest for tag, *rest in rows}
        version = told.get("version", [""])[0]
        return ContainerHost(
            version=version.split("version ")[-1].split(",")[0].strip() or None,
            problem=told.get("problem", [""])[0],
            images=tuple(image for tag, *rest in rows if tag == "image" and (image := _image(rest))),
            devices=tuple(sorted({rest[0] for tag, *rest in rows if tag == "device"})),
            files=tuple(rest[0] for tag, *rest in rows if tag == "file"),
            groups={rest[0]: int(rest[1]) for tag, *rest in rows if tag == "group" and rest[1:] and rest[1].isdigit()},
            cdi=tuple(sorted({rest[0] for tag, *rest in rows if tag == "cdi"})),
        )

    @staticmethod
    def default() -> ContainerHost:
        """No engine, and nothing for it."""
        return ContainerHost()


class BroughtImages(FactBase[dict[str, dict[str, Any]]]):
    """Key → state, bytes, and who else has it, of images that we brought to the host.

    + images: key → {engine, names, label}
    """

    def command(self, images: dict[str, dict[str, Any]]) -> str:
        """The shell command that reads it."""
        return run_program("brought_images.py", {"images": images})

    def process(self, output: list[str]) -> dict[str, dict[str, Any]]:
        """Read the command's output."""
        try:
            told: dict[str, dict[str, Any]] = json.loads("\n".join(output))
            return {key: {name: seen[name] for name in ("state", "size", "by")} for key, seen in told.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FactProcessError(f"what was told of images can't be read: {error}") from error


def _image(fields: list[str]) -> Image | None:
    try:
        identity, digests, tags, labels = fields
        return Image(
            identity.removeprefix("sha256:"),
            tuple(json.loads(digests) or ()),
            tuple(json.loads(tags) or ()),
            dict(json.loads(labels) or {}),
        )
    except ValueError:
        return None
