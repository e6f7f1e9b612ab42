"""Reading cubins: damage of any kind is a CubinError, never a crash; remarks keep lines and lose repetitions."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.compile.cubin import CubinError, read
from evaluator.compile.remarks import scalar_mma, summary, transfers

HMMA, HGMMA, LDL, UTMALDG, FFMA = 0x23C, 0x9F0, 0x983, 0x5B4, 0x223
DEPBAR_ALL = (0x00008000000079C5, 0x000FC60000010000)  # WARPGROUP.DEPBAR.LE gsb0, 0x0 as nvdisasm shows it
DEPBAR_ONE = (0x00008000000079C5, 0x000FE40000010100)  # … gsb0, 0x1
ARRIVE = (0x00000000000079C5, 0x000FE20000000000)  # WARPGROUP.ARRIVE
BACK = (0xFFFFFFFC00F08947, 0x000FEA000383FFFF)  # @!P0 BRA to three instructions before it, as nvdisasm shows it


def cubin(
    code: list[tuple[int, int]], registers: int = 40, stack: int = 0, shared: int = 1024, helper: int = 0
) -> bytes:
    """A cubin as the assembler lays it out: one kernel ``k`` with symbol index 2, a helper's records at index 1."""
    text = b"".join(struct.pack("<QQ", *words) for words in code)

    def record(attribute: int, *words: int) -> bytes:
        return struct.pack("<BBH", 4, attribute, 4 * len(words)) + struct.pack(f"<{len(words)}I", *words)

    info = record(0x2F, 1, 7) + record(0x11, 1, helper) + record(0x2F, 2, registers) + record(0x11, 2, stack)
    own = record(0x10, 256, 1, 1) + struct.pack("<BBH", 3, 0x1B, 255) + record(0x3D, 2, 1, 1)
    strings = b"\0k\0"
    symbols = b"\0" * 24 + struct.pack("<IBBHQQ", 0, 2, 0, 99, 0, 0) + struct.pack("<IBBHQQ", 1, 0x12, 0, 5, 0, 0)
    names, blobs = [b"\0"], []
    table = [(0, 0, 0, 0, 0)]
    at = 64
    for name, kind, data, size, link in [
        (b".strtab", 3, strings, None, 0),
        (b".symtab", 2, symbols, None, 1),
        (b".nv.info", 0x70000000, info, None, 0),
        (b".nv.info.k", 0x70000000, own, None, 0),
        (b".text.k", 1, text, None, 0),
        (b".nv.shared.k", 8, b"", shared, 0),
    ]:
        table.append((sum(map(len, names)), kind, at, len(data) if size is None else size, link))
        names.append(name + b"\0")
        blobs.append(data)
        at += len(data)
    table.append((sum(map(len, names)), 3, at, 0, 0))
    names.append(b".shstrtab\0")
    header_at = at + sum(map(len, names))
    sections = b"".join(struct.pack("<IIQQQQIIQQ", n, k, 0, 0, o, s, ln, 0, 1, 0) for n, k, o, s, ln in table)
    ident = b"\x7fELF\x02\x01\x01\x41\x08" + b"\0" * 7
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, header_at, 0x6005A04, 64, 0, 0, 64, len(table), 7)
    return header + b"".join(blobs) + b"".join(names) + sections


def test_the_kernels_own_records_are_read_not_its_helpers():
    facts = read(cubin([(FFMA, 0)] * 4, registers=168, stack=32, helper=640))
    assert (facts.symbol, facts.arch) == ("k", "sm_90")
    assert (facts.registers, facts.stack_bytes, facts.shared_bytes) == (168, 32, 1024)
    assert (facts.threads, facts.ctas) == (256, 2)
    assert facts.instructions == 4


def test_instructions_are_counted_by_their_low_opcode_bits():
    facts = read(cubin([(HMMA, 0), (HMMA | 0xABC000, 0), (LDL, 0), (UTMALDG, 0), (FFMA, 0)]))
    assert facts.mma == (("mma.sync", 2),)
    assert facts.local_instructions == 1
    assert facts.tma


@pytest.mark.parametrize(
    ("wait", "serialised"), [(DEPBAR_ALL, True), (DEPBAR_ONE, False), (ARRIVE, False)], ids=["all", "one", "arrive"]
)
def test_a_wait_for_all_groups_after_every_wgmma_is_serialised(wait, serialised):
    assert read(cubin([(HGMMA, 0), wait] * 8)).serialised_wgmma is serialised


def test_one_wait_after_the_loop_is_healthy():
    assert not read(cubin([(HGMMA, 0)] * 8 + [DEPBAR_ALL])).serialised_wgmma


@pytest.mark.parametrize(("waits", "in_flight"), [([], 0), ([DEPBAR_ALL], 0), ([DEPBAR_ONE, DEPBAR_ALL], 1)])
def test_what_the_most_patient_wait_leaves_running_is_in_flight(waits, in_flight):
    assert read(cubin([(HGMMA, 0), *waits])).wgmma_in_flight == in_flight


def test_spills_inside_the_loop_around_the_tensor_cores_are_told_from_others():
    loop = [(HGMMA, 0), (LDL, 0), (LDL, 0), BACK]
    without = [(FFMA, 0), (LDL, 0), (FFMA, 0), BACK]
    facts = read(cubin([(LDL, 0), *loop, *without, (LDL, 0)]))
    assert (facts.local_instructions, facts.loop_local_instructions) == (5, 2)
    assert read(cubin([(LDL, 0), (HGMMA, 0), *without])).loop_local_instructions == 0


def test_of_nested_loops_the_innermost_counts():
    far = (BACK[0] & ~0xFF0000 | 0xE0 << 16, BACK[1])  # eight instructions back from the next one
    facts = read(cubin([(LDL, 0), (LDL, 0), (FFMA, 0), (HGMMA, 0), (LDL, 0), (FFMA, 0), BACK, far]))
    assert (facts.local_instructions, facts.loop_local_instructions) == (3, 1)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"not an elf file at all" * 9])
def test_what_is_no_cubin_is_refused(data):
    with pytest.raises(CubinError):
        read(data)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_damage_is_read_or_refused_but_never_a_crash(data):
    whole = bytearray(cubin([(HGMMA, 0), DEPBAR_ALL, (LDL, 0)] * 3))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for damaged in (bytes(whole), cut):
        try:
            facts = read(damaged)
        except CubinError:
            continue
        assert facts.registers > 0


REMARK = """--- !{kind}
Pass:            Tensor-core
Name:            {name}
DebugLoc:        {{ File: '/a b/kernel.py', Line: {line}, Column: 14 }}
Function:        k
Args:
  - RemarkId:    2
  - Remark:      said at length
  - Instruction: {instruction}
  - Shape:       '[64, 128, 16]'
...
"""


def test_remarks_are_short_sorted_and_not_repeated():
    mma = REMARK.format(kind="Passed", name="RemarkTensorCoreMMA", line=30, instruction="Tensor-core SM90")
    load = REMARK.format(
        kind="Passed", name="RemarkMemoryLoadInstructionSelected", line=7, instruction="TMA Load instruction"
    )
    assert summary(mma + load + mma) == (
        "line 7: load: TMA [64, 128, 16]",
        "line 30: MMA: Tensor-core SM90 [64, 128, 16]",
    )


def test_a_failed_mma_remark_says_scalar():
    text = REMARK.format(kind="Failure", name="RemarkTensorCoreMMA", line=3, instruction="FMA")
    assert summary(text) == ("line 3: MMA failed: FMA [64, 128, 16]",)
    assert scalar_mma(summary(text))


def test_which_arrays_go_by_tma_is_told_by_the_lines_that_the_remarks_name():
    source = "a = ct.load(x, (i, 0), (4, 64))\nb = ct.load(w,\n  (0,), (64,))\nc = ct.gather(t, a)\n"
    source += "ct.store(y, (i, 0), a)\nd = ct.gather(t, c)\n"
    remarks = ("line 1: load: TMA [4, 64]", "line 1: MMA: FMA [1]", "line 3: load: TMA [64]")
    refused = ("line 4: load: Global-memory load", "line 5: MemoryTmaStoreFailed failed: Failed to select TMA store")
    assert transfers(remarks, source) == "TMA: x, line 3"
    assert transfers(remarks + refused, source) == "TMA: x, line 3; not t (line 4), y (line 5)"
    again = ("line 6: load: Global-memory load",)
    assert transfers(refused + again, source) == "no TMA: t (lines 4, 6), y (line 5)"
    assert transfers(("line 99: store: TMA [4]",), "") == "TMA: line 99"
    assert transfers((), source) == ""


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300))
def test_any_text_has_a_summary(text):
    assert isinstance(summary(text), tuple)
