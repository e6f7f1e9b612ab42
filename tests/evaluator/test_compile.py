"""Compile: real kernels through the real assembler to five architectures, hostile bytes, limits, reproducibility."""

from __future__ import annotations

import contextlib
import hashlib
import io

import pytest

from evaluator import toolchain
from evaluator.compile import Cache, Compiled, compile_kernels
from evaluator.kernel import Kernel
from evaluator.tileir import InvalidTileIR
from evaluator.toolchain import first_error
from knowledge_base.chips import ARCHS, CHIPS
from knowledge_base.errors import UserError
from knowledge_base.records import Stage, Status, Verdict

SOURCE = """
import cuda.tile as ct

@ct.kernel
def scale(x, y, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, index=(i,), tile=ct.load(x, index=(i,), shape=(T,)) * 2)

@ct.kernel
def padded_neg_inf(x, y, T: ct.Constant[int]):
    ct.store(y, index=(0,), tile=ct.load(x, index=(1,), shape=(T,), padding_mode=ct.PaddingMode.NEG_INF))

@ct.kernel
def padded_neg_zero(x, y, T: ct.Constant[int]):
    ct.store(y, index=(0,), tile=ct.load(x, index=(1,), shape=(T,), padding_mode=ct.PaddingMode.NEG_ZERO))

@ct.kernel
def matmul(x, w, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.full((TM, TN), 0, dtype=ct.float32)
    for k in range(ct.num_tiles(x, axis=1, shape=(TM, TK))):
        a = ct.load(x, index=(i, k), shape=(TM, TK), padding_mode=ct.PaddingMode.ZERO)
        b = ct.load(w, index=(k, j), shape=(TK, TN), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(a, b, acc)
    ct.store(y, index=(i, j), tile=acc.astype(y.dtype))
"""


def _bytecode(folder, kernel: str, dtype: str, rank: int, arrays: int, constants: tuple[int, ...], **hints) -> bytes:
    """Tile IR bytecode of a kernel of SOURCE, exported without a GPU; the source lies in ``folder``."""
    import importlib.util

    import cuda.tile as ct
    from cuda.tile import compilation as c

    path = folder / "kernels.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(f"kernels_{hashlib.sha1(str(path).encode()).hexdigest()}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    array = c.ArrayConstraint(
        getattr(ct, dtype),
        rank,
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(None,) * (rank - 1) + (1,),
        stride_divisible_by=(16,) * (rank - 1) + (1,),
        shape_divisible_by=(1,) * rank,
        base_addr_divisible_by=16,
    )
    signature = c.KernelSignature(
        [array] * arrays + [c.ConstantConstraint(v) for v in constants],
        c.CallingConvention.cutile_python_v2(),
        symbol="k",
    )
    out = io.BytesIO()
    function = getattr(module, kernel).replace_hints(**hints) if hints else getattr(module, kernel)
    c.export_kernel(
        function, [signature], out, gpu_code="sm_100", output_format="tileir_bytecode", bytecode_version="13.4"
    )
    return out.getvalue()


@pytest.mark.parametrize(
    ("dtype", "mode", "refused"),
    [("float8_e4m3fn", "NEG_INF", True), ("float8_e8m0fnu", "NEG_ZERO", True), ("float8_e5m2", "NEG_INF", False)],
)
def test_the_emulator_refuses_the_padding_that_tileiras_refuses(tmp_path, dtype, mode, refused) -> None:
    bytecode = _bytecode(tmp_path, f"padded_{mode.lower()}", dtype, 1, 2, (16,))
    (made,) = compile_kernels(_named(bytecode), ["sm_120"]).values()
    assert isinstance(made, Verdict) == refused
    with pytest.raises(InvalidTileIR, match="to pad with") if refused else contextlib.nullcontext():
        assert Kernel.of(bytecode).program


def _named(bytecode: bytes) -> dict[str, bytes]:
    return {hashlib.sha256(bytecode).hexdigest(): bytecode}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("source")


@pytest.fixture(scope="module")
def matmul(folder) -> bytes:
    return _bytecode(folder, "matmul", "float16", 2, 3, (64, 64, 64))


@pytest.fixture(scope="module")
def scale(folder) -> bytes:
    return _bytecode(folder, "scale", "float32", 1, 2, (1024,))


@pytest.fixture(scope="module")
def compiled(matmul, tmp_path_factory) -> dict[str, Compiled]:
    """The matmul for every architecture."""
    answers = compile_kernels(_named(matmul), cache=Cache(tmp_path_factory.mktemp("cache")))
    assert all(isinstance(a, Compiled) for a in answers.values()), answers
    return {arch: answer for (_, arch), answer in answers.items()}


@pytest.mark.parametrize(
    ("arch", "mma"),
    [("sm_90", "wgmma"), ("sm_100", "tcgen05"), ("sm_103", "tcgen05"), ("sm_120", "mma.sync"), ("sm_121", "mma.sync")],
)
def test_a_matmul_uses_each_architectures_own_tensor_instruction(compiled, arch, mma):
    evidence = compiled[arch].evidence
    assert evidence.mma == mma
    assert evidence.arch == arch
    assert evidence.symbol == "k"
    assert evidence.tma
    assert any("MMA: Tensor-core" in remark and remark.startswith("line ") for remark in evidence.remarks)


@pytest.mark.parametrize("arch", ARCHS)
def test_resources_fit_the_chips_of_the_architecture(compiled, arch):
    evidence = compiled[arch].evidence
    chip = next(c for c in CHIPS.values() if c.arch == arch)
    assert 16 <= evidence.registers <= 255
    assert 0 < evidence.shared_bytes <= chip.shared_per_block
    assert evidence.threads % 32 == 0
    assert 32 <= evidence.threads <= 1024
    assert evidence.stack_bytes == evidence.spill_bytes == evidence.local_instructions == 0
    assert evidence.cubin_bytes == len(compiled[arch].cubin)
    assert evidence.seconds > 0


@pytest.mark.skipif("toolchain.tool('tileiras').version != '13.4.92'", reason="figures of tileiras 13.4.92")
@pytest.mark.parametrize(
    ("arch", "registers", "shared"),
    # as cuobjdump -res-usage 13.5 prints them for these cubins
    [("sm_90", 255, 165096), ("sm_100", 255, 165116), ("sm_103", 255, 165116), ("sm_120", 255, 58484)],
)
def test_registers_and_shared_memory_equal_cuobjdumps(compiled, arch, registers, shared):
    evidence = compiled[arch].evidence
    assert (evidence.registers, evidence.shared_bytes) == (registers, shared)


def test_a_float32_matmul_is_reported_as_scalar_and_its_spills_are_seen(folder, tmp_path):
    bytecode = _bytecode(folder, "matmul", "float32", 2, 3, (128, 64, 32))
    (answer,) = compile_kernels(_named(bytecode), ["sm_90"], cache=Cache(tmp_path)).values()
    assert answer.evidence.mma == "fma"
    assert answer.evidence.spill_bytes == answer.evidence.stack_bytes > 0
    assert answer.evidence.local_instructions > 0


def test_clusters_are_seen(folder, tmp_path):
    bytecode = _bytecode(folder, "matmul", "float16", 2, 3, (256, 128, 64), num_ctas=2)
    (answer,) = compile_kernels(_named(bytecode), ["sm_100"], cache=Cache(tmp_path)).values()
    assert answer.evidence.ctas == 2


def test_the_same_bytecode_gives_the_same_cubin(compiled, matmul, tmp_path):
    again = compile_kernels(_named(matmul), ["sm_100"], cache=Cache(tmp_path / "elsewhere"))
    assert [a.digest for a in again.values()] == [compiled["sm_100"].digest]


def test_where_the_source_lay_does_not_reach_the_cubin(scale, tmp_path):
    other = tmp_path / "another" / "place"
    other.mkdir(parents=True)
    moved = _bytecode(other, "scale", "float32", 1, 2, (1024,))
    assert moved != scale
    answers = compile_kernels(_named(scale) | _named(moved), ["sm_120"], cache=Cache(tmp_path / "cache"))
    assert len({a.digest for a in answers.values()}) == 1


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b"garbage" * 99, lambda b: b[: len(b) // 2]])
def test_damaged_bytecode_is_a_compile_error(scale, damage, tmp_path):
    (answer,) = compile_kernels(_named(damage(scale)), ["sm_90"], cache=Cache(tmp_path)).values()
    assert isinstance(answer, Verdict)
    assert (answer.status, answer.stage) == (Status.COMPILE_ERROR, Stage.COMPILE)
    assert answer.message


def test_one_bad_kernel_does_not_stop_the_others(scale, tmp_path):
    kernels = _named(b"garbage") | _named(scale)
    answers = list(compile_kernels(kernels, ["sm_90"], cache=Cache(tmp_path), jobs=2).values())
    assert [type(a) for a in answers] == [Verdict, Compiled]


def test_an_assembly_beyond_its_time_is_a_timeout_and_is_not_remembered(matmul, tmp_path):
    cache = Cache(tmp_path)
    (answer,) = compile_kernels(_named(matmul), ["sm_90"], cache=cache, seconds=0.005).values()
    assert answer.status is Status.TIMEOUT
    assert answer.error_class == "compile-timeout"
    (answer,) = compile_kernels(_named(matmul), ["sm_90"], cache=cache).values()
    assert isinstance(answer, Compiled)


def test_progress_hears_of_every_answer_once(scale, tmp_path):
    heard = []
    for _ in range(2):  # cold, then from the cache
        compile_kernels(
            _named(scale), ["sm_90", "sm_120"], cache=Cache(tmp_path), progress=lambda k, a: heard.append(k[1])
        )
    assert sorted(heard) == ["sm_120", "sm_120", "sm_90", "sm_90"]


def test_an_unknown_architecture_is_a_user_error(scale):
    with pytest.raises(UserError, match="sm_101"):
        compile_kernels(_named(scale), ["sm_101"])


def test_a_bytecode_under_a_wrong_hash_is_our_defect(scale):
    with pytest.raises(ValueError, match="hash"):
        compile_kernels({"0" * 64: scale}, ["sm_90"])


def test_errors_lose_their_debug_locations_and_keep_the_line():
    stderr = (
        '#cuda_tile.di_loc<loc("/home/u/kernel.py":4:7) in #cuda_tile.di_subprogram<file = <"kernel.py" in "/home/u">, '
        'line = 3, name = "mm", linkageName = "k">>: error: Incompatibility with architecture \'sm_80\': no f8\n'
        "error: failed to compile Tile IR program\n"
    )
    assert first_error(stderr) == ("Incompatibility with architecture 'sm_80': no f8", 4)


def test_the_line_of_an_error_in_a_function_of_the_front_end_is_that_of_its_caller():
    stderr = (
        'loc(callsite(#cuda_tile.di_loc<loc("cuda/tile/_stub.py":678:15) in #cuda_tile.di_subprogram<file = '
        '<"_stub.py" in "cuda/tile">, line = 676, name = "astype">> at #cuda_tile.di_loc<loc("candidate.py":12:11) in '
        '#cuda_tile.di_subprogram<file = <"candidate.py" in "">, line = 8, name = "tile">>)): error: no f4\n'
    )
    assert first_error(stderr) == ("no f4", 12)


def test_a_name_that_a_candidate_chose_is_not_taken_for_what_the_tool_says():
    named = "error: register allocation failed"
    stderr = f'#cuda_tile.di_loc<loc("{named}":5:12) in <file = <"{named} \\" error: more" in "">>>: error: no f8\n'
    assert first_error(stderr)[0] == "no f8"


def test_a_tool_that_fails_without_a_reason_says_nothing():
    assert first_error("error: failed to compile Tile IR program\n") == ("", None)


def test_an_error_with_unprintable_bytes_stays_one_printable_line():
    message, line = first_error("error: function '\x1b[31m\ufffd' is odd\nerror: failed to compile Tile IR program\n")
    assert message.isprintable()
    assert line is None


def test_cutiles_own_cache_is_untouched(scale, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_TILE_CACHE_DIR", str(tmp_path / "cutile"))
    compile_kernels(_named(scale), ["sm_90"], cache=Cache(tmp_path / "ours"))
    assert not (tmp_path / "cutile").exists()
    assert toolchain.find("tileiras").is_file()
