"""Where things are on a host."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PREFIX = "/opt/lmcache-fleet"
# The service's own writable directory; its working directory, and the home of KV tiers on disk.
STATE_DIRECTORY = "/var/lib/lmcache-fleet"


@dataclass(frozen=True, slots=True)
class ReleaseLayout:
    """Paths of one release.

    Args:
        root: the release's directory.
    """

    root: str

    @property
    def venv(self) -> str:
        """The virtual environment."""
        return f"{self.root}/venv"

    @property
    def python(self) -> str:
        """Its interpreter."""
        return f"{self.venv}/bin/python"

    def file(self, relative: str) -> str:
        """A path below the release."""
        return f"{self.root}/{relative}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below the prefix.

    Args:
        prefix: directory that holds everything versioned.
    """

    prefix: str

    def release(self, name: str) -> ReleaseLayout:
        """Paths of one release."""
        return ReleaseLayout(f"{self.prefix}/releases/{name}")

    @property
    def current(self) -> str:
        """The link to the serving release."""
        return f"{self.prefix}/current"

    @property
    def lock(self) -> str:
        """Held by the run that works on the host."""
        return f"{self.prefix}/.run.lock"

    @property
    def step_lock(self) -> str:
        """Held by each changing command: an orphan of a killed run keeps it until its command ends."""
        return f"{self.prefix}/.step.lock"

    def model(self, name: str) -> str:
        """Directory of a model."""
        return f"{self.prefix}/models/{name}"

    def tool(self, name: str) -> str:
        """Directory of a tool."""
        return f"{self.prefix}/tools/{name}"

    @property
    def uv_cache(self) -> str:
        """uv's cache, on the same file system as the releases so that wheels are hard-linked into them."""
        return f"{self.prefix}/cache/uv"

    @property
    def bundle(self) -> str:
        """What came with bundles: files by their hash, and directories of links to them."""
        return f"{self.prefix}/cache/bundle"

    @property
    def images(self) -> str:
        """A note of each container image that we brought to the host."""
        return f"{self.prefix}/images"

    def secrets(self, service: str) -> str:
        """Environment file with a service's secrets."""
        return f"{self.prefix}/secrets/{service}.env"
