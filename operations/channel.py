"""A program on a host that is written to while it runs, over whatever its connector offers."""

from __future__ import annotations

import subprocess
from typing import Any, BinaryIO, Protocol


class Channel(Protocol):
    """A running program; `answer` is the first line that it said."""

    answer: str

    def write(self, data: bytes) -> None:
        """Give it input, at once.

        Raises:
            OSError: it or the connection is gone.
        """

    def input(self) -> BinaryIO:
        """Its standard input, for what doesn't fit into memory."""

    def ended(self) -> bool:
        """Whether it is over."""

    def finish(self) -> tuple[int, list[str]]:
        """End its input and wait for it; gives its exit status and what it said since its first line."""


class LocalChannel:
    """A program on the control machine itself.

    Args:
        command: for the shell; every value in it is quoted.
    """

    def __init__(self, command: str) -> None:
        self._process = subprocess.Popen(  # noqa: S602 - quoted by the command builder, as pyinfra's own connector does
            command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.answer = self._process.stdout.readline().decode(errors="replace").strip()

    def write(self, data: bytes) -> None:
        """Give it input, at once."""
        into = self.input()
        into.write(data)
        into.flush()

    def input(self) -> BinaryIO:
        """Its standard input."""
        assert self._process.stdin is not None
        return self._process.stdin  # type: ignore[return-value]

    def ended(self) -> bool:
        """Whether it is over."""
        return self._process.poll() is not None

    def finish(self) -> tuple[int, list[str]]:
        """End its input and wait for it."""
        said, _ = self._process.communicate()
        return self._process.returncode, said.decode(errors="replace").splitlines()


class SshChannel:
    """A program at the other end of an SSH connection.

    Args:
        client: paramiko's client of the connection.
        command: for the account's shell there; every value in it is quoted.
    """

    def __init__(self, client: Any, command: str) -> None:
        self._stdin, self._stdout, self._stderr = client.exec_command(command)
        self.answer: str = self._stdout.readline().strip() or "".join(self._stderr.readlines()).strip()

    def write(self, data: bytes) -> None:
        """Give it input, at once."""
        self._stdin.channel.sendall(data)

    def input(self) -> BinaryIO:
        """Its standard input."""
        return self._stdin  # type: ignore[no-any-return]

    def ended(self) -> bool:
        """Whether it is over."""
        return bool(self._stdout.channel.exit_status_ready())

    def finish(self) -> tuple[int, list[str]]:
        """End its input and wait for it."""
        self._stdin.channel.shutdown_write()
        lines = [*self._stdout.readlines(), *self._stderr.readlines()]
        return self._stdout.channel.recv_exit_status(), [line.rstrip() for line in lines]
