"""What the facts of all vendors' tools have in common: the shell, judging answers, filling one from another.

Every command is bounded, reads nothing, leaves nothing in the caller's shell and succeeds whatever the tools do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

from pyinfra.api import FactBase

from lmcache_fleet.accelerators import Accelerators, Chip
from lmcache_fleet.parsers.sections import Section, judged, read_sections

NO_ANSWER = "no-answer"

# `ask NAME COMMAND…` frames one answer and leaves it in `$answer`, its exit status in `$code`; `show NAME FILE` frames
# a file if there is one. A login that isn't interactive often lacks the vendor's directories: they come last.
_ASK = """\
PATH="$PATH:/usr/local/sbin:/usr/sbin:/usr/local/bin:@PATHS@"; export PATH
ask() {
  section=$1; shift
  answer=$(timeout 20 "$@" 2>&1 </dev/null); code=$?
  printf '@@section %s\\n%s\\n@@status %s\\n' "$section" "$answer" "$code"
}
show() {
  if [ -r "$2" ]; then printf '@@section %s\\n%s\\n@@status 0\\n' "$1" "$(cat "$2" 2>/dev/null)"; fi
}
"""


def script(body: str, paths: str) -> str:
    """A self-contained command around a script that uses `ask` and `show`.

    Args:
        body: the script, in POSIX shell.
        paths: directories of the vendor's tools, separated by colons.
    """
    return f"(\nLC_ALL=C; export LC_ALL\n{_ASK.replace('@PATHS@', paths)}{body}:\n)"


class VendorFact(FactBase[Accelerators]):
    """Cards, processes and versions by one vendor's tools."""

    vendor: ClassVar[str]
    paths: ClassVar[str]
    body: ClassVar[str]

    @classmethod
    def default(cls) -> Accelerators:
        """The shell said nothing."""
        return Accelerators(cls.vendor, NO_ANSWER, "the host answered nothing")

    def command(self) -> str:
        """The shell command that reads it."""
        return script(self.body, self.paths)

    def process(self, output: list[str]) -> Accelerators:
        """Read the command's output."""
        sections = {section.name: section for section in read_sections(output)}
        if not sections:
            return self.default()
        try:
            return self.read(sections)
        except Exception as error:
            # An exception here would end the run of every host; the parsers should raise none.
            return Accelerators(self.vendor, "unreadable", f"{type(error).__name__}: {error}")

    def read(self, sections: Mapping[str, Section]) -> Accelerators:
        """What the framed answers amount to."""
        raise NotImplementedError


def answered(
    parse: Callable[[str], Accelerators], section: Section | None, harmless: frozenset[int] = frozenset()
) -> Accelerators | None:
    """A section's answer, its state judged with the exit status; None when it wasn't asked.

    Args:
        parse: reads the text.
        section: the framed answer.
        harmless: exit statuses that a good answer may have.
    """
    if section is None:
        return None
    answer = parse(section.text)
    if answer.state == "ok" and answer.chips and section.status in harmless:
        return replace(answer, extra={**answer.extra, "exit_status": section.status})
    state, message = judged(answer.state, answer.message, section)
    if state == "tool-failed" and section.status == 127:
        state = "tool-missing"
    return replace(answer, state=state, message=message)


def best(answers: Iterable[Accelerators | None]) -> Accelerators | None:
    """The first good answer; else the first that lists cards; else the last, whose error text says most."""
    given = [answer for answer in answers if answer is not None]
    good = (answer for answer in given if answer.state == "ok" and answer.chips)
    listing = (answer for answer in given if answer.chips)
    # A hung or refused tool is what to tell, not that its next form of asking was refused as well.
    telling = (answer for answer in reversed(given) if answer.state not in {"empty", "unrecognized", "usage-error"})
    for found in (good, listing, telling):
        answer = next(found, None)
        if answer is not None:
            return answer
    return given[-1] if given else None


def filled(answer: Accelerators, other: Accelerators | None) -> Accelerators:
    """An answer's gaps filled from another about the same cards: by address where both have it, else by number.

    Args:
        answer: what counts.
        other: what fills; its own state and list of cards don't count.
    """
    if other is None or not other.chips:
        return answer
    by_number = {chip.npu_id: chip for chip in other.chips}
    by_bus = {bus: chip for chip in other.chips if (bus := address(chip.bus_id))}
    chips = []
    for chip in answer.chips:
        bus = address(chip.bus_id)
        same = by_bus.get(bus) if bus and by_bus else by_number.get(chip.npu_id)
        chips.append(chip if same is None else _filled(chip, same))
    return replace(answer, chips=tuple(chips))


def _filled(chip: Chip, other: Chip) -> Chip:
    def first(mine: int | None, its: int | None) -> int | None:
        return its if mine is None else mine

    return replace(
        chip,
        name=chip.name or other.name,
        health=chip.health or other.health,
        bus_id=chip.bus_id or other.bus_id,
        memory_used_mb=first(chip.memory_used_mb, other.memory_used_mb),
        memory_total_mb=first(chip.memory_total_mb, other.memory_total_mb),
        logic_id=first(chip.logic_id, other.logic_id),
        extra={**other.extra, **{key: value for key, value in chip.extra.items() if value is not None}},
    )


def address(bus: str | None) -> str | None:
    """A PCI address in one form: tools print the domain with four digits or with eight."""
    if not bus:
        return None
    domain, colon, rest = bus.lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest}" if colon and rest.count(":") == 1 else f"0000:{bus.lower()}"


def first_line(section: Section | None) -> str | None:
    """The first line of a shown file that isn't blank."""
    return next((line.strip() for line in section.lines if line.strip()), None) if section else None
