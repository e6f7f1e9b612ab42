"""What a cubin says about itself: resources from its ``.nv.info`` sections, instructions from its machine code.

A cubin is an ELF file; this reads only what the evidence needs, checks every bound (the file comes out of an assembler
that read hostile bytes), and runs nothing.  It is no disassembler: of an instruction it knows the opcode's nine low
bits, which name the operation on every architecture since Volta, of a branch where it goes, of a wait for what (all
checked against nvdisasm for sm_90 to sm_121).
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
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
_LOCAL = (0x183, 0x187)  # LDL, STL
_TMA = (0x1B4, 0x1B5)  # UTMALDG, UTMASTG
_BRANCH = 0x147  # BRA
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
    serialised_wgmma: the code waits for every wgmma group before it issues the next one.  wgmma_in_flight: groups that
    its most patient wait leaves running: 0 where each turn of the loop drains the tensor cores.
    loop_local_instructions: of the local loads and stores, those in the innermost loop that holds tensor-core
    instructions.
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
    wgmma_in_flight: int
    loop_local_instructions: int


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
    words = _instructions(_content(cubin, code[0]))
    opcodes = [low & _OPCODE_BITS for low, _ in words]
    counts, waits = Counter(opcodes), _waits(words)
    mma: Counter[str] = Counter()
    for opcode, name in _MMA.items():
        if counts[opcode]:
            mma[name] += counts[opcode]
    return CubinFacts(
        symbol=symbol,
        arch=f"sm_{(struct.unpack_from('<I', cubin, 0x30)[0] >> 8) & 0xFF}",
        registers=registers,
        stack_bytes=stack,
        shared_bytes=shared.size if shared else 0,
        threads=threads,
        ctas=ctas,
        instructions=len(opcodes),
        local_instructions=sum(counts[op] for op in _LOCAL),
        mma=tuple(sorted(mma.items())),
        tma=any(counts[op] for op in _TMA),
        # A healthy pipeline waits for all groups after its loop; a serialised one after nearly every instruction.
        serialised_wgmma=mma["wgmma"] > 1 and 4 * waits.count(0) >= 3 * mma["wgmma"],
        wgmma_in_flight=max(waits, default=0),
        loop_local_instructions=_in_loop(words, opcodes),
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


_Words = Sequence[tuple[int, int]]  # (low, high) 64 bits of each instruction


def _instructions(code: bytes) -> _Words:
    words = struct.unpack(f"<{len(code) // _INSTRUCTION_BYTES * 2}Q", code[: len(code) // 16 * 16])
    return tuple(zip(words[::2], words[1::2], strict=True))


def _waits(words: _Words) -> list[int]:
    """Of every wait for wgmma groups, how many it leaves running."""
    return [
        high >> 8 & 0x7F for low, high in words if low & _OPCODE_BITS == _WARPGROUP and low & _DEPBAR_MARK
    ]  # fmt: skip


def _in_loop(words: _Words, opcodes: Sequence[int]) -> int:
    """Local loads and stores in the innermost loops around tensor-core instructions; of several the largest count."""
    loops = []
    for at, ((low, high), opcode) in enumerate(zip(words, opcodes, strict=True)):
        if opcode == _BRANCH and (start := at + 1 + _offset(low, high)) < at:
            loops.append((at - start, start, at))
    around = [place for place, opcode in enumerate(opcodes) if opcode in _MMA]  # … that no smaller loop holds
    before = [0, *itertools.accumulate(opcode in _LOCAL for opcode in opcodes)]
    most = 0
    for _, start, end in sorted(loops):
        first, last = bisect_left(around, start), bisect_right(around, end)
        if first < last:
            most = max(most, before[end + 1] - before[max(0, start)])
            del around[first:last]
    return most


def _offset(low: int, high: int) -> int:
    """How far a branch goes from the instruction after it, in instructions: a signed count of four bytes, in pieces."""
    count = (high & (1 << 18) - 1) << 38 | (low >> 34) << 8 | low >> 16 & 0xFF
    return (count - (1 << 56 if count >> 55 else 0)) * 4 // _INSTRUCTION_BYTES


def _content(cubin: bytes, section: _Section) -> bytes:
    if section.offset + section.size > len(cubin):
        raise CubinError(f"section {section.name} reaches beyond the file")
    return cubin[section.offset : section.offset + section.size]


def _text(cubin: bytes, at: int) -> str:
    return cubin[at : cubin.index(b"\0", at)].decode() if cubin.find(b"\0", at) >= 0 else ""
