"""Container registries: names of images, and the digest that a tag stands for."""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from lmcache_fleet.problems import Trouble
from lmcache_fleet.store import store_root

_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_TIMEOUT = 30


class RegistryError(Trouble):
    """A tag's digest can't be had."""


@dataclass(frozen=True, slots=True)
class ImageName:
    """An image's name in full.

    Args:
        registry: host, with its port where it has one.
        repository: path there.
        tag: None when only the digest is given.
        digest: as `sha256:…`; None when not given.
    """

    registry: str
    repository: str
    tag: str | None
    digest: str | None

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}{f'@{self.digest}' if self.digest else ''}"


def image_name(text: str) -> ImageName:
    """An image's name in full: `vllm/vllm-openai` is on docker.io, and no tag is `latest`, as engines read it."""
    name, _, digest = text.partition("@")
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = "docker.io", name if slash else f"library/{name}"
    repository, _, tag = rest.partition(":")
    return ImageName(first, repository, tag or (None if digest else "latest"), digest or None)


def pinned_digest(name: ImageName, *, follow: bool = False, tls_verify: bool = True, root: Path | None = None) -> str:
    """The digest that a name stands for: its own, or that of its tag, asked for once and then recorded.

    Args:
        name: the image.
        follow: ask at every run, for tags that move on purpose; what is recorded serves when nobody answers.
        tls_verify: false for a registry without TLS, or with any certificate.
        root: the store's directory.

    Raises:
        RegistryError: nothing is recorded and the registry doesn't tell.
    """
    if name.digest:
        return name.digest
    record = (root or store_root()) / "images.json"
    known: dict[str, str] = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    if str(name) in known and not follow:
        return known[str(name)]
    try:
        found = ask_digest(name, tls_verify=tls_verify)
    except RegistryError:
        if str(name) in known:
            return known[str(name)]
        raise
    if known.get(str(name)) != found:
        record.parent.mkdir(parents=True, exist_ok=True)
        part = record.with_suffix(".part")
        part.write_text(json.dumps({**known, str(name): found}, indent=1, sort_keys=True), encoding="utf-8")
        part.replace(record)
    return found


def ask_digest(name: ImageName, *, tls_verify: bool = True) -> str:
    """The digest of a tag, as the registry says it now.

    Raises:
        RegistryError: it can't be reached, or has no such image.
    """
    remedy = "check the name, and that the control machine reaches the registry; or give the digest in `image`"
    host = "registry-1.docker.io" if name.registry == "docker.io" else name.registry
    context = None
    if not tls_verify:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    last = "no answer"
    for scheme in ("https",) if tls_verify else ("https", "http"):
        url = f"{scheme}://{host}/v2/{name.repository}/manifests/{name.tag}"
        try:
            digest = _head(url, context)
        except urllib.error.HTTPError as error:
            raise RegistryError(f"{name}: the registry answers {error.code} {error.reason}", remedy) from error
        except (OSError, ValueError, KeyError) as error:
            last = str(getattr(error, "reason", None) or error)
            continue
        if _DIGEST.match(digest):
            return digest
        last = f"the answer has no digest ({digest!r})"
    raise RegistryError(f"{name}: {last}", remedy)


def _head(url: str, context: ssl.SSLContext | None) -> str:
    headers = {"Accept": ", ".join(_TYPES)}
    try:
        return _digest_header(url, headers, context)
    except urllib.error.HTTPError as error:
        challenge = error.headers.get("WWW-Authenticate", "")
        if error.code != 401 or not challenge.lower().startswith("bearer "):
            raise
    # Public images too are read with a token, which anybody gets.
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm")
    if not realm.startswith(("https://", "http://")):
        raise ValueError(f"odd token address {realm!r}")
    ask = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(fields)}")  # noqa: S310 - checked above
    with urllib.request.urlopen(ask, timeout=_TIMEOUT, context=context) as answer:  # noqa: S310
        given = json.loads(answer.read())
    token = given.get("token") or given["access_token"]
    return _digest_header(url, {**headers, "Authorization": f"Bearer {token}"}, context)


def _digest_header(url: str, headers: dict[str, str], context: ssl.SSLContext | None) -> str:
    request = urllib.request.Request(url, headers=headers, method="HEAD")  # noqa: S310 - a registry's address
    with urllib.request.urlopen(request, timeout=_TIMEOUT, context=context) as answer:  # noqa: S310
        return str(answer.headers.get("Docker-Content-Digest", ""))
