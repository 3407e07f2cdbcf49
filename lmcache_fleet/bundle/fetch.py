"""Fetch a file from an index, to disk, with its hash."""

from __future__ import annotations

import base64
import hashlib
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

_SILENT = 60


class FetchFailed(Exception):
    """A file can't be fetched; the message names it and the cause."""


def fetch(url: str, target: Path, *, trusted: Sequence[str] = (), places: Sequence[str] = (), tries: int = 4) -> str:
    """Fetch a file.

    Args:
        url: where it is.
        target: where it is put.
        trusted: hosts, with or without a port, of which any certificate is good enough.
        places: URLs of the indexes, from which name and password are taken when the file's own URL has none.
        tries: how often it is tried in all.

    Returns:
        Its SHA-256.

    Raises:
        FetchFailed: it can't be had.
    """
    parts = urlsplit(url if "//" in url else urljoin("file:///", url))
    request = urllib.request.Request(_bare(parts))  # noqa: S310 - a playbook may name any place, files included
    login = _login(parts) or next((_login(known) for known in map(urlsplit, places) if _is_same(known, parts)), "")
    if login:
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    context = ssl.create_default_context()
    if parts.hostname in trusted or f"{parts.hostname}:{parts.port}" in trusted:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    cause = ""
    for attempt in range(tries):
        if attempt:
            time.sleep(min(5, 2**attempt))
        seen = hashlib.sha256()
        try:
            with (
                urllib.request.urlopen(request, timeout=_SILENT, context=context) as answer,  # noqa: S310 - see above
                target.open("wb") as out,
            ):
                while block := answer.read(1 << 20):
                    seen.update(block)
                    out.write(block)
                wanted = answer.headers.get("Content-Length")
            if wanted is None or int(wanted) == target.stat().st_size:
                return seen.hexdigest()
            cause = f"{target.stat().st_size} of {wanted} bytes came"
        except urllib.error.HTTPError as error:
            cause = f"HTTP {error.code}"
            if error.code in (401, 403, 404, 410):
                break
        except OSError as error:
            cause = str(getattr(error, "reason", error))
    raise FetchFailed(f"{_bare(parts)} can't be fetched: {cause}")


def _bare(parts: SplitResult) -> str:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()


def _login(parts: SplitResult) -> str:
    return unquote(parts.netloc.rpartition("@")[0])


def _is_same(one: SplitResult, other: SplitResult) -> bool:
    return (one.scheme, one.hostname, one.port) == (other.scheme, other.hostname, other.port)
