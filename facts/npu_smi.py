"""What `npu-smi` says: cards, boards, numbers, links, health. Every answer has a state; a failed one is never empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from pyinfra.api import FactBase

from lmcache_fleet.accelerators import Accelerators, Process
from lmcache_fleet.parsers.ascend_text import number
from lmcache_fleet.parsers.npu_smi import (
    NpuList,
    NpuMapping,
    NpuProcesses,
    NpuRecord,
    NpuTopology,
    parse_info,
    parse_list,
    parse_map,
    parse_proc_mem,
    parse_record,
    parse_topo,
)
from lmcache_fleet.parsers.sections import Section, judged, read_sections
from lmcache_fleet.plain import Plain

_NO_ANSWER = "no-answer"
_LIBRARY_NOTE = "library-path"

# `ask NAME ARGUMENTS…` frames one answer and leaves it in `$answer`. A login that isn't interactive has no sbin
# directories and, in many containers, no driver libraries in its paths. The tool is sound all the same: it is asked
# again with them, and a note tells that it had to be.
_ASK = f"""\
PATH="/usr/local/sbin:/usr/sbin:/usr/local/bin:$PATH"; export PATH
ask() {{
  section=$1; shift
  answer=$(timeout 20 npu-smi "$@" 2>&1 </dev/null); status=$?
  case $answer in *'error while loading shared libraries'*)
    lib=/usr/local/Ascend/driver/lib64
    lib=$lib:$lib/common:$lib/driver${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
    if again=$(LD_LIBRARY_PATH=$lib timeout 20 npu-smi "$@" 2>&1 </dev/null); then
      answer=$again; status=0
      printf '@@section %s\\n@@status 0\\n' {_LIBRARY_NOTE}
    fi;;
  esac
  printf '@@section %s\\n%s\\n@@status %s\\n' "$section" "$answer" "$status"
}}
"""
# The cards' numbers are the tool's own, never 0 to n-1: a container may have 5 and 7, a Duo card 32768.
_EACH_CARD = """\
ask list info -l
numbers=$(printf '%s\\n' "$answer" | sed -n 's/^.*NPU ID *: *\\([0-9][0-9]*\\).*$/\\1/p' | sort -un)
"""


S = TypeVar("S", Accelerators, NpuList, NpuMapping, NpuTopology, NpuRecord, NpuProcesses)


@dataclass(frozen=True, slots=True)
class NpuCards(Plain):
    """One kind of answer for each card.

    Args:
        state: `ok`, or the state of the list of cards, or of the first card that isn't `ok`.
        message: the line that the state was judged by; empty when ok.
        cards: card number → its answer.
    """

    state: str
    message: str = ""
    cards: dict[int, NpuRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NpuBoards(Plain):
    """The boards, and the SoC that native builds are made for.

    Args:
        state: `ok` when a board names its chip; else the tool's named error, or `no-chip-name`.
        message: the line that the state was judged by; empty when ok.
        soc: SoC name, case-exact, such as `Ascend910B3` or `Ascend910_9382`.
        boards: card number → the answer that names its chip: the card's, or its first chip's.
    """

    state: str
    message: str = ""
    soc: str | None = None
    boards: dict[int, NpuRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NpuCardProcesses(Plain):
    """The processes of every card by `-t proc-mem`, which names them in full.

    Args:
        state: as of `NpuCards`.
        message: the line that the state was judged by; empty when ok.
        processes: in the order of the cards.
    """

    state: str
    message: str = ""
    processes: tuple[Process, ...] = ()


def _script(body: str) -> str:
    """A self-contained command around a script: nothing of it is left in the caller's shell, and it succeeds."""
    return f"(\nLC_ALL=C; export LC_ALL\n{_ASK}{body}:\n)"


def _answered(parse: Callable[[str], S], section: Section) -> S:
    """A section's answer, its state judged with the exit status."""
    answer = parse(section.text)
    state, message = judged(answer.state, answer.message, section)
    return replace(answer, state=state, message=message)


def _named(output: list[str]) -> dict[str, Section]:
    return {section.name: section for section in read_sections(output)}


class NpuSmiInfo(FactBase[Accelerators]):
    """Cards, chips and processes by `npu-smi info`."""

    @staticmethod
    def default() -> Accelerators:
        """The shell said nothing."""
        return Accelerators("ascend", _NO_ANSWER, "the host answered nothing")

    def command(self) -> str:
        """The shell command that reads it."""
        return _script("ask info info\n")

    def process(self, output: list[str]) -> Accelerators:
        """Read the command's output."""
        sections = _named(output)
        if "info" not in sections:
            return self.default()
        answer = _answered(parse_info, sections["info"])
        if _LIBRARY_NOTE in sections:
            return replace(answer, extra={**answer.extra, "needs_library_path": True})
        return answer


class NpuSmiList(FactBase[NpuList]):
    """Cards and products by `npu-smi info -l`."""

    @staticmethod
    def default() -> NpuList:
        """The shell said nothing."""
        return NpuList(_NO_ANSWER)

    def command(self) -> str:
        """The shell command that reads it."""
        return _script("ask list info -l\n")

    def process(self, output: list[str]) -> NpuList:
        """Read the command's output."""
        sections = _named(output)
        return _answered(parse_list, sections["list"]) if "list" in sections else self.default()


class NpuSmiMapping(FactBase[NpuMapping]):
    """Card, die, logical and physical numbers by `npu-smi info -m`."""

    @staticmethod
    def default() -> NpuMapping:
        """The shell said nothing."""
        return NpuMapping(_NO_ANSWER)

    def command(self) -> str:
        """The shell command that reads it."""
        return _script("ask map info -m\n")

    def process(self, output: list[str]) -> NpuMapping:
        """Read the command's output."""
        sections = _named(output)
        return _answered(parse_map, sections["map"]) if "map" in sections else self.default()


class NpuSmiTopo(FactBase[NpuTopology]):
    """Links between dies and the processors near to them by `npu-smi info -t topo`."""

    @staticmethod
    def default() -> NpuTopology:
        """The shell said nothing."""
        return NpuTopology(_NO_ANSWER)

    def command(self) -> str:
        """The shell command that reads it."""
        return _script("ask topo info -t topo\n")

    def process(self, output: list[str]) -> NpuTopology:
        """Read the command's output."""
        sections = _named(output)
        return _answered(parse_topo, sections["topo"]) if "topo" in sections else self.default()


class NpuSmiBoard(FactBase[NpuBoards]):
    """Boards and the SoC name by `npu-smi info -t board`.

    The card is asked first: newer parts name the chip there, and refuse the question for one chip. Where the card's
    answer has no chip name, its first chip is asked.

    + npu: number of one card; all are tried in order otherwise, until one names its chip
    + all_cards: ask every card, not only as many as it takes to know the SoC
    """

    @staticmethod
    def default() -> NpuBoards:
        """The shell said nothing."""
        return NpuBoards(_NO_ANSWER)

    def command(self, npu: int | None = None, all_cards: bool = False) -> str:
        """The shell command that reads it."""
        numbers = _EACH_CARD if npu is None else f"numbers={int(npu)}\n"
        enough = "" if all_cards else "  case $answer in *'Chip Name'*) break;; esac\n"
        return _script(
            f"{numbers}for n in $numbers; do\n"
            '  ask "card $n" info -t board -i "$n"\n'
            '  case $answer in *\'Chip Name\'*) ;; *) ask "chip $n" info -t board -i "$n" -c 0;; esac\n'
            f"{enough}done\n"
        )

    def process(self, output: list[str]) -> NpuBoards:
        """Read the command's output."""
        sections = _named(output)
        boards: dict[int, NpuRecord] = {}
        for name, section in sections.items():
            level, _, npu = name.partition(" ")
            card, answer = number(npu), _answered(parse_record, section)
            if card is not None and (level == "card" or (level == "chip" and answer.state == "ok")):
                boards[card] = answer
        soc = next((answer.soc for answer in boards.values() if answer.state == "ok" and answer.soc), None)
        if soc:
            return NpuBoards("ok", "", soc, boards)
        if not boards:
            listed = _answered(parse_list, sections["list"]) if "list" in sections else NpuList(_NO_ANSWER)
            return NpuBoards("no-devices" if listed.state == "ok" else listed.state, listed.message)
        bad = next((answer for answer in boards.values() if answer.state != "ok"), None)
        if bad:
            return NpuBoards(bad.state, bad.message, None, boards)
        return NpuBoards("no-chip-name", "no board names its chip", None, boards)


class _PerCard(FactBase[NpuCards]):
    """One question to every card."""

    kind: ClassVar[str]

    @staticmethod
    def default() -> NpuCards:
        """The shell said nothing."""
        return NpuCards(_NO_ANSWER)

    def command(self, npu: int | None = None) -> str:
        """The shell command that reads it.

        Args:
            npu: number of one card; every card otherwise.
        """
        return _per_card(self.kind, npu)

    def process(self, output: list[str]) -> NpuCards:
        """Read the command's output."""
        state, message, cards = _read_cards(parse_record, output)
        return NpuCards(state, message, cards)


def _per_card(kind: str, npu: int | None) -> str:
    numbers = _EACH_CARD if npu is None else f"numbers={int(npu)}\n"
    return _script(f'{numbers}for n in $numbers; do ask "card $n" info -t {kind} -i "$n"; done\n')


def _read_cards(parse: Callable[[str], S], output: list[str]) -> tuple[str, str, dict[int, S]]:
    """State, message and the answer of each card."""
    sections = _named(output)
    cards: dict[int, S] = {}
    for name, section in sections.items():
        npu = number(name.removeprefix("card "))
        if npu is not None:
            cards[npu] = _answered(parse, section)
    for npu, card in cards.items():
        if card.state != "ok":
            return card.state, f"NPU {npu}: {card.message}", cards
    if cards:
        return "ok", "", cards
    listed = _answered(parse_list, sections["list"]) if "list" in sections else NpuList(_NO_ANSWER)
    return ("no-devices" if listed.state == "ok" else listed.state), listed.message, cards


class NpuSmiHealth(_PerCard):
    """Health word, error code and text of every card."""

    kind = "health"


class NpuSmiUsages(_PerCard):
    """Use of memory, cores and bandwidth of every card."""

    kind = "usages"


class NpuSmiMemory(_PerCard):
    """Kind, size and clock of every card's memory."""

    kind = "memory"


class NpuSmiCommon(_PerCard):
    """Use, frequency, temperature and power of every card."""

    kind = "common"


class NpuSmiPower(_PerCard):
    """Power of every card."""

    kind = "power"


class NpuSmiEcc(_PerCard):
    """Memory errors of every card."""

    kind = "ecc"


class NpuSmiProcMem(FactBase[NpuCardProcesses]):
    """Processes of every card, with names that the table of `npu-smi info` cuts off."""

    @staticmethod
    def default() -> NpuCardProcesses:
        """The shell said nothing."""
        return NpuCardProcesses(_NO_ANSWER)

    def command(self, npu: int | None = None) -> str:
        """The shell command that reads it.

        Args:
            npu: number of one card; every card otherwise.
        """
        return _per_card("proc-mem", npu)

    def process(self, output: list[str]) -> NpuCardProcesses:
        """Read the command's output."""
        state, message, cards = _read_cards(parse_proc_mem, output)
        return NpuCardProcesses(state, message, tuple(process for card in cards.values() for process in card.processes))
