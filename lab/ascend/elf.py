"""Writes very small, valid shared objects, so that ``dlopen`` and the linker meet real files.

The vendor's libraries can't be shipped and a placeholder file gives other errors than a missing library does. These
objects need no compiler on the control machine: one text page of functions that return 0, a dynamic section with a
soname and the libraries wanted, and the section headers that a linker looks for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_MACHINES = {"x86_64": 62, "aarch64": 183}
#: "return 0", padded to 16 bytes
_CODE = {
    "x86_64": bytes.fromhex("31c0c3").ljust(16, b"\x90"),
    "aarch64": bytes.fromhex("e0031f2ac0035fd6").ljust(16, b"\x00"),
}
_PAGE = 0x10000  # the largest page size in use on either architecture


class _Strings:
    """A string table under construction."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def _sysv_hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        if high:
            value ^= high >> 24
        value &= ~high & 0xFFFFFFFF
    return value


def shared_object(arch: str, soname: str, functions: Sequence[str] = (), needed: Sequence[str] = ()) -> bytes:
    """Gives the bytes of a shared object called *soname* whose *functions* all return 0.

    Args:
        arch: ``x86_64`` or ``aarch64``, as ``uname -m`` says it.
        soname: what the object calls itself.
        functions: names it exports.
        needed: libraries the loader must find with it (a missing one fails as it would for a real library).
    """
    code = _CODE[arch]
    strings = _Strings()
    soname_at = strings.add(soname)
    needed_at = [strings.add(name) for name in needed]
    names_at = [strings.add(name) for name in functions]

    def align(value: int, to: int = 16) -> int:
        return (value + to - 1) // to * to

    count = len(functions) + 1
    headers = 64 + 56 * 4
    text_at = align(headers)
    text = code * max(1, len(functions))
    symbols_at = align(text_at + len(text))
    hash_at = symbols_at + 24 * count
    strings_at = align(hash_at + 4 * (2 + 1 + count))
    dynamic_at = align(strings_at + len(strings.data))
    dynamic_address = dynamic_at + _PAGE

    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for number, name_at in enumerate(names_at):
        symbols += struct.pack("<IBBHQQ", name_at, 0x12, 0, 1, text_at + 16 * number, 16)
    # one bucket, all names chained in it: the smallest correct hash table
    chain = [0] * count
    for index in range(1, count - 1):
        chain[index] = index + 1
    table = struct.pack(f"<{3 + count}I", 1, count, 1 if functions else 0, *chain)
    entries = [(1, offset) for offset in needed_at]
    entries += [
        (14, soname_at),
        (4, hash_at),
        (5, strings_at),
        (6, symbols_at),
        (10, len(strings.data)),
        (11, 24),
        (0, 0),
    ]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    end = dynamic_at + len(dynamic)

    names = _Strings()
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (names.add(".text"), 1, 6, text_at, text_at, len(text), 0, 0, 16, 0),
        (names.add(".dynsym"), 11, 2, symbols_at, symbols_at, len(symbols), 4, 1, 8, 24),
        (names.add(".hash"), 5, 2, hash_at, hash_at, len(table), 2, 0, 8, 4),
        (names.add(".dynstr"), 3, 2, strings_at, strings_at, len(strings.data), 0, 0, 1, 0),
        (names.add(".dynamic"), 6, 3, dynamic_address, dynamic_at, len(dynamic), 4, 0, 8, 16),
    ]
    own_name = names.add(".shstrtab")
    sections.append((own_name, 3, 0, 0, end, len(names.data), 0, 0, 1, 0))
    sections_at = align(end + len(names.data))

    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH", 3, _MACHINES[arch], 1, 0, 64, sections_at, 0, 64, 56, 4, 64, len(sections), len(sections) - 1
    )
    # two mappings, so that none is both writable and executable: a hardened unit refuses such a library
    programs = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, dynamic_at, dynamic_at, _PAGE)
    place = (dynamic_at, dynamic_address, dynamic_address, len(dynamic), len(dynamic))
    programs += struct.pack("<IIQQQQQQ", 1, 6, *place, _PAGE)
    programs += struct.pack("<IIQQQQQQ", 2, 6, *place, 8)
    programs += struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)  # a stack that isn't executable

    image = bytearray(sections_at)
    for offset, data in (
        (0, header + programs),
        (text_at, text),
        (symbols_at, symbols),
        (hash_at, table),
        (strings_at, strings.data),
        (dynamic_at, dynamic),
        (end, names.data),
    ):
        image[offset : offset + len(data)] = data
    for section in sections:
        image += struct.pack("<IIQQQQIIQQ", *section)
    return bytes(image)
