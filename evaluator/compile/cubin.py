"""What a cubin says about itself: resources from its ``.nv.info`` sections, instructions from its machine code.

A cubin is an ELF file; this reads only what the evidence needs, checks every bound (the file comes out of an assembler
that read hostile bytes), and runs nothing.  It is no disassembler: of an instruction it knows the opcode's nine low
bits, which name the operation on every architecture since Volta (checked against nvdisasm for sm_90 to sm_121).
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass

# EIATTR codes of .nv.info records: public in CUDA's headers by name, here by number as cuobjdump -elf prints them.
_REQNTID, _FRAME_SIZE, _REGCOUNT, _CTA_PER_CLUSTER = 0x10, 0x11, 0x2F, 0x3D
_SIZED = 0x04  # format byte of a record whose two-byte value is the length of what follows

_OPCODE_BITS = 0x1FF
_MMA = {
    0x1F0: "wgmma",  # HGMMA: f16, bf16, tf32
    0x1F1: "wgmma",  # IGMMA
    0x1F3: "wgmma",  # QGMMA: f8
    0x1EA: "tcgen05",  # UTCHMMA, UTCQMMA, UTCIMMA
    0x03C: "mma.sync",  # HMMA
    0x07A: "mma.sync",  # QMMA
    0x037: "mma.sync",  # IMMA
    0x03F: "mma.sync",  # DMMA
}
_LOAD_LOCAL, _STORE_LOCAL = 0x183, 0x187  # LDL, STL
_TMA = (0x1B4, 0x1B5)  # UTMALDG, UTMASTG
_WARPGROUP = 0x1C5
_DEPBAR_MARK = 1 << 47  # of the low word: WARPGROUP.DEPBAR; without it WARPGROUP.ARRIVE
_INSTRUCTION_BYTES = 16


class CubinError(ValueError):
    """A file that is not a well-formed cubin with exactly one kernel."""


@dataclass(frozen=True)
class CubinFacts:
    """Resources of the one kernel in a cubin.

    stack_bytes: the frame, per thread.  local_instructions: loads and stores of local memory (spills, as tile kernels
    have no local arrays).  shared_bytes: static shared memory, per block; tile kernels use no dynamic one.
    threads: per block; ctas: blocks per cluster.  mma: how many of each tensor-core instruction stand in the code.
    serialised_wgmma: the code waits for every wgmma group before it issues the next one.
    """

    symbol: str
    arch: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    threads: int
    ctas: int
    instructions: int
    local_instructions: int
    mma: tuple[tuple[str, int], ...]
    tma: bool
    serialised_wgmma: bool


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    offset: int
    size: int
    link: int
    info: int


def read(cubin: bytes) -> CubinFacts:
    """The facts of a cubin with one kernel.  Raises CubinError."""
    try:
        return _read(cubin)
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        raise CubinError(f"cubin cut short or damaged: {error}") from None


def _read(cubin: bytes) -> CubinFacts:
    if cubin[:4] != b"\x7fELF" or len(cubin) < 64:
        raise CubinError("not an ELF file")
    sections = _sections(cubin)
    code = [s for s in sections if s.name.startswith(".text.")]
    if len(code) != 1:
        raise CubinError(f"{len(code)} kernels in the cubin, not 1")
    symbol = code[0].name.removeprefix(".text.")
    by_name = {s.name: s for s in sections}
    index = _symbol_index(cubin, sections, symbol)

    registers = stack = 0
    for attribute, value in _attributes(_content(cubin, by_name[".nv.info"]) if ".nv.info" in by_name else b""):
        if attribute in (_REGCOUNT, _FRAME_SIZE) and len(value) >= 8:
            owner, number = struct.unpack_from("<II", value)
            if owner == index:
                registers, stack = (number, stack) if attribute == _REGCOUNT else (registers, number)
    if not registers:
        raise CubinError(f"no register count for {symbol}")
    threads, ctas = 0, 1
    own = by_name.get(f".nv.info.{symbol}")
    for attribute, value in _attributes(_content(cubin, own) if own else b""):
        if attribute in (_REQNTID, _CTA_PER_CLUSTER) and len(value) >= 12:
            x, y, z = struct.unpack_from("<III", value)
            threads, ctas = (x * y * z, ctas) if attribute == _REQNTID else (threads, x * y * z)
    shared = by_name.get(f".nv.shared.{symbol}")
    opcodes, waits = _opcodes(_content(cubin, code[0]))
    mma: Counter[str] = Counter()
    for opcode, name in _MMA.items():
        if opcodes[opcode]:
            mma[name] += opcodes[opcode]
    return CubinFacts(
        symbol=symbol,
        arch=f"sm_{(struct.unpack_from('<I', cubin, 0x30)[0] >> 8) & 0xFF}",
        registers=registers,
        stack_bytes=stack,
        shared_bytes=shared.size if shared else 0,
        threads=threads,
        ctas=ctas,
        instructions=opcodes.total(),
        local_instructions=opcodes[_LOAD_LOCAL] + opcodes[_STORE_LOCAL],
        mma=tuple(sorted(mma.items())),
        tma=any(opcodes[t] for t in _TMA),
        # A healthy pipeline waits for all groups after its loop; a serialised one after nearly every instruction.
        serialised_wgmma=mma["wgmma"] > 1 and 4 * waits >= 3 * mma["wgmma"],
    )


def _sections(cubin: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    raw = [struct.unpack_from("<IIQQQQII", cubin, table + i * entry) for i in range(count)]
    if names >= len(raw):
        raise CubinError("no section names")
    strings = raw[names][4]
    return [_Section(_text(cubin, strings + r[0]), r[1], r[4], r[5], r[6], r[7]) for r in raw]


def _symbol_index(cubin: bytes, sections: list[_Section], symbol: str) -> int:
    """The kernel's index in the symbol table: .nv.info records of helper functions carry other indices."""
    table = next((s for s in sections if s.name == ".symtab"), None)
    if table is None or table.link >= len(sections):
        raise CubinError("no symbol table")
    strings = sections[table.link].offset
    for i in range(table.size // 24):
        name, info, _, section = struct.unpack_from("<IBBH", cubin, table.offset + 24 * i)
        function = info & 0xF == 2 and section < len(sections) and sections[section].name == f".text.{symbol}"
        if function and _text(cubin, strings + name) == symbol:
            return i
    raise CubinError(f"no symbol {symbol}")


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    """(code, value) of each .nv.info record: format byte, code byte, two value bytes or the length of what follows."""
    found, at = [], 0
    while at + 4 <= len(data):
        form, code, length = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED:
            found.append((code, data[at : at + length]))
            at += length
        else:
            found.append((code, b""))
    return found


def _opcodes(code: bytes) -> tuple[Counter[int], int]:
    """How often each nine-bit opcode occurs, and how many waits for *all* wgmma groups there are."""
    words = struct.unpack(f"<{len(code) // _INSTRUCTION_BYTES * 2}Q", code[: len(code) // 16 * 16])
    counts = Counter(word & _OPCODE_BITS for word in words[::2])
    waits = sum(
        low & _OPCODE_BITS == _WARPGROUP and bool(low & _DEPBAR_MARK) and not high >> 8 & 0x7F
        for low, high in zip(words[::2], words[1::2], strict=True)
    )
    return counts, waits


def _content(cubin: bytes, section: _Section) -> bytes:
    if section.offset + section.size > len(cubin):
        raise CubinError(f"section {section.name} reaches beyond the file")
    return cubin[section.offset : section.offset + section.size]


def _text(cubin: bytes, at: int) -> str:
    return cubin[at : cubin.index(b"\0", at)].decode() if cubin.find(b"\0", at) >= 0 else ""
