"""The `key : value` answers of npu-smi (`-t board`, `usages`, `health`, `memory`, …, `-l`), with one block a chip."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lmcache_fleet.parsers.ascend_soc import soc_name
from lmcache_fleet.parsers.ascend_text import clean_lines, error_state, number, unread_state
from lmcache_fleet.plain import Plain

# First words of the keys that the tool prints; they find the key behind a log's prefix, and tell an answer from prose.
_WORDS = (
    "AI|Aicore|Aiv|Aicpu|Aicube|Aivector|BOM|Board|Card|Chip|Class|Compatibility|Ctrlcpu|DDR|DVPP|Die|ECC|Error|Firmware|HBM|"
    "Health|Hugepages|MCU|Main|Manufacturer|Mcu|Memory|Model|NDie|NPU|PCB|PCI|PCIe|Part|Power|Process|Product|Serial|Slot|"
    "Software|Subsystem|Temperature|Total|VDie|Vector|Vectorcore|npu-smi"
)
_PAIR = re.compile(r"([A-Za-z][^:=]{0,60}?)\s*:\s*(.*)")
_KNOWN = re.compile(rf"(?:^|[\s\]>|])((?:{_WORDS})(?:[ (/-][^:=|\]]{{0,60}})?)(?<!\s)\s*:\s*(.*)")
_WHOLE = {"NPU ID", "Card ID", "Chip Count", "Total Count", "Card Count"}
_ADDRESS = _WHOLE | {"Chip ID"}
_CHIP = {"Chip ID"}


@dataclass(frozen=True, slots=True)
class NpuRecord(Plain):
    """One `key : value` answer.

    Args:
        state: `ok`, the named error of the output, `empty`, `truncated` (it says which device it is about and no
            more) or `unrecognized`.
        message: the line that the state was judged by; empty when ok.
        kv: every key of the answer with its first value, which is the first chip's.
        blocks: one dict for each chip (and one for the controller that some cards list as chip `mcu`).
    """

    state: str
    message: str = ""
    kv: dict[str, str] = field(default_factory=dict)
    blocks: tuple[dict[str, str], ...] = ()

    @property
    def npu_id(self) -> int | None:
        """The card that the answer is about."""
        return number(self.kv.get("NPU ID"))

    @property
    def chip_count(self) -> int | None:
        """Number of chips of the card; None where not printed."""
        return number(self.kv.get("Chip Count"))

    @property
    def health(self) -> str | None:
        """The health word: key `Health Status`, or `Health` on newer parts."""
        return self.kv.get("Health Status") or self.kv.get("Health")

    @property
    def soc(self) -> str | None:
        """SoC name as native builds need it; None for an answer without the chip's name."""
        return soc_name(self.kv)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data, with what is derived."""
        derived = {"npu_id": self.npu_id, "chip_count": self.chip_count, "health": self.health, "soc": self.soc}
        return {**asdict(self), **{key: value for key, value in derived.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class NpuList(Plain):
    """The cards of `npu-smi info -l`.

    Args:
        state: `ok`, the named error, `no-devices`, or `truncated` when fewer cards are listed than counted.
        message: the line that the state was judged by; empty when ok.
        total: number of cards that the tool counts.
        cards: keys and values of each card.
    """

    state: str
    message: str = ""
    total: int | None = None
    cards: tuple[dict[str, str], ...] = ()

    @property
    def npu_ids(self) -> tuple[int, ...]:
        """Card numbers in the order printed."""
        return tuple(npu for card in self.cards if (npu := number(card.get("NPU ID"))) is not None)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data, with counts; `chip_count` is None where the tool doesn't print it."""
        counts = [number(card.get("Chip Count")) for card in self.cards]
        known = [count for count in counts if count is not None]
        return {
            **asdict(self),
            "npu_count": len(self.cards),
            "chip_count": sum(known) if counts and len(known) == len(counts) else None,
            "npu_ids": list(self.npu_ids),
            "names": [card.get("Product Name", "") for card in self.cards],
        }


def parse_record(text: str) -> NpuRecord:
    """Read a `key : value` answer of npu-smi.

    Args:
        text: standard output and error, as they came.
    """
    lines = clean_lines(text)
    blocks = _blocks(lines)
    kv: dict[str, str] = {}
    for block in blocks:
        for key, value in block.items():
            kv.setdefault(key, value)
    state, message = _record_state(lines, kv)
    if state not in {"ok", "truncated"}:
        kv, blocks = {}, []
    chips = tuple(block for block in blocks if set(block) - _WHOLE)
    return NpuRecord(state, message[:500], kv, chips)


def parse_list(text: str) -> NpuList:
    """Read `npu-smi info -l`.

    Args:
        text: standard output and error, as they came.
    """
    lines = clean_lines(text)
    cards: list[dict[str, str]] = []
    total: int | None = None
    for block in _blocks(lines, whole=frozenset({"NPU ID", "Card ID"})):
        count = block.pop("Total Count", block.pop("Card Count", None))
        total = number(count) if total is None else total
        if "NPU ID" in block:
            cards.append(block)
    if not cards:
        state, message = unread_state(lines)
        return NpuList("no-devices", "Total Count: 0", 0) if total == 0 else NpuList(state, message, total)
    if total is not None and len(cards) < total:
        return NpuList("truncated", f"{len(cards)} of {total} cards are listed", total, tuple(cards))
    return NpuList("ok", "", total, tuple(cards))


def _record_state(lines: list[str], kv: Mapping[str, str]) -> tuple[str, str]:
    error = error_state([line for line in lines if not line.lstrip().startswith(("Error Code", "Error Info"))])
    if not any(_KNOWN.match(f"{key}:") for key in kv):
        return unread_state(lines)
    if set(kv) - _ADDRESS:
        return "ok", ""
    return error or ("truncated", "the answer names the device and says nothing about it")


def split_pair(line: str) -> tuple[str, str] | None:
    """Key and value of one line; None when it isn't such a line."""
    bare = line.strip()
    known = _KNOWN.search(bare)
    if known and (known.start(1) == 0 or _is_prefix(bare[: known.start(1)])):
        return known[1], known[2]
    plain = _PAIR.fullmatch(bare)
    return (plain[1], plain[2]) if plain else None


def _is_prefix(text: str) -> bool:
    """Whether what stands before a known key is a log's prefix rather than the first words of an unknown key."""
    word = text.strip()
    return bool(re.search(r"[\d\[\]|>]", word)) or word.isupper()


def _blocks(lines: list[str], whole: frozenset[str] = frozenset()) -> list[dict[str, str]]:
    """Pairs, in blocks: a blank line ends one, and a key that is there already starts the next.

    Args:
        lines: cleaned lines.
        whole: keys that always start a block.
    """
    blocks: list[dict[str, str]] = [{}]
    last, depth = "", 0
    for line in lines:
        bare = line.strip()
        if not bare:
            last = ""
            if blocks[-1] and not whole:
                blocks.append({})
            continue
        pair = split_pair(line)
        indent = len(line) - len(line.lstrip())
        open_ended = bool(last) and blocks[-1][last].endswith(",")
        if pair is None or (last and indent > depth and (open_ended or "=" in bare.split(":")[0])):
            # A long value goes on in the next line, deeper or after a comma.
            if last and error_state([bare]) is None and (indent > depth or open_ended):
                blocks[-1][last] = f"{blocks[-1][last]} {bare}"
            continue
        if error_state([line]) and not pair[0].startswith("Error"):
            continue
        key, value = pair
        # The controller's block starts with its name, whether or not a blank line sets it off.
        controller = key == "Chip Name" and value.lower() == "mcu"
        if blocks[-1] and (key in blocks[-1] or key in whole or controller):
            blocks.append({})
        blocks[-1][key] = value
        last, depth = key, indent
    return [block for block in blocks if block]
