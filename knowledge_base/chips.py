"""Chips: what is known of each GPU, every figure with its source.

A :class:`Chip` is hardware facts, no measurements of kernels.  Rates are *dense* (no structured sparsity) peaks in
FLOP/s at the boost clock, with float32 accumulation; sizes are bytes, clocks Hz, bandwidths bytes/s.  The two
``sustained_*`` fractions say how much of a peak long-running code reaches; they were measured on the H200 and are
estimates elsewhere.

``chip("auto")`` asks the CUDA driver: a product that is recorded here gives its record, another one a record *derived*
from the driver's answers and from the per-SM rates of its architecture.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from knowledge_base.errors import EnvironmentLacks, UserError, nearest
from knowledge_base.records import Record

ARCHS = ("sm_90", "sm_100", "sm_103", "sm_120", "sm_121")
DEFAULT = "rtx5070"  # the chip assumed where there is no GPU

KIB, MIB, GIB = 2**10, 2**20, 2**30
TENSOR_DTYPES = ("f8", "f16", "bf16", "tf32", "f64")


class Figure(Record):
    """One fact about a chip: ``value`` in ``unit``, and where it comes from."""

    name: str
    value: float
    unit: str
    source: str


TMA_UNIT = 16  # bytes: TMA moves multiples of them, to and from addresses that are multiples of them
# The matrix instruction that reaches an architecture's full rate (PTX ISA: wgmma, tcgen05.mma, mma.sync).
FULL_RATE = {"sm_90": "wgmma", "sm_100": "tcgen05", "sm_103": "tcgen05", "sm_120": "mma.sync", "sm_121": "mma.sync"}

# The unit of every figure of a Chip; a dotted name is an entry of ``tensor_flops``.
UNITS: dict[str, str] = {
    "sm_count": "SMs",
    "boost_hz": "Hz",
    "memory_bytes": "B",
    "memory_bytes_per_s": "B/s",
    "l2_bytes": "B",
    "l2_bytes_per_s": "B/s",
    "shared_per_sm": "B",
    "shared_per_block": "B",
    "registers_per_sm": "32-bit registers",
    "warps_per_sm": "warps",
    "blocks_per_sm": "blocks",
    "fp32_flops": "FLOP/s",
    "special_per_sm_clock": "results per clock and SM",
    "sustained_tensor": "fraction of peak",
    "sustained_memory": "fraction of peak",
    **{f"tensor_flops.{dtype}": "FLOP/s" for dtype in TENSOR_DTYPES},
}


class Chip(Record):
    """A GPU.  ``sources`` maps every figure's name (the keys of UNITS) to where it comes from.

    special_per_sm_clock: results of exp2, log2, rsqrt, tanh … a clock and SM.
    derived: True where the record comes from the driver's answers and not from this file.
    """

    name: str
    product: str
    arch: str
    sm_count: int
    boost_hz: float
    memory_bytes: int
    memory_bytes_per_s: float
    l2_bytes: int
    l2_bytes_per_s: float
    shared_per_sm: int
    shared_per_block: int
    registers_per_sm: int
    warps_per_sm: int
    blocks_per_sm: int
    fp32_flops: float
    special_per_sm_clock: float
    tensor_flops: Mapping[str, float]
    sustained_tensor: float
    sustained_memory: float
    sources: Mapping[str, str]
    derived: bool = False

    @model_validator(mode="after")
    def _every_figure_has_a_source(self) -> Chip:
        missing = [name for name in self._figure_names() if not self.sources.get(name)]
        if missing:
            raise ValueError(f"chip {self.name}: no source for {', '.join(missing)}")
        return self

    def _figure_names(self) -> list[str]:
        return [n for n in UNITS if "." not in n or n.split(".")[1] in self.tensor_flops]

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability: (9, 0), (12, 1) …"""
        digits = self.arch.removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])

    def figures(self) -> tuple[Figure, ...]:
        """Every figure with its unit and source, in a fixed order."""
        found = []
        for name in self._figure_names():
            field, _, dtype = name.partition(".")
            value = self.tensor_flops[dtype] if dtype else getattr(self, field)
            found.append(Figure(name=name, value=float(value), unit=UNITS[name], source=self.sources[name]))
        return tuple(found)


# ---------------------------------------------------------------------------------------------------- sources

GUIDE = "CUDA C++ Programming Guide, technical specifications per compute capability"
GUIDE_RATE = "CUDA C++ Programming Guide, throughput of native arithmetic instructions"
BLACKWELL_TUNING = "NVIDIA Blackwell Tuning Guide"
RTX_PAPER = "NVIDIA RTX Blackwell GPU Architecture whitepaper, GeForce specifications"
HOPPER_PAPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
H100_SHEET = "NVIDIA H100 Tensor Core GPU datasheet, SXM (its tensor figures are with sparsity: halved)"
H200_SHEET = "NVIDIA H200 Tensor Core GPU datasheet (its tensor figures are with sparsity: halved)"
HGX_SHEET = "NVIDIA HGX B200 datasheet, divided by 8 GPUs (tensor figures with sparsity: halved)"
GB300_SHEET = "NVIDIA GB300 NVL72 datasheet, divided by 72 GPUs (tensor figures with sparsity: halved)"
SPARK_PAGE = "NVIDIA DGX Spark hardware overview"
DRIVER_REPORT = "CUDA driver, device query"
MEASURED_H100 = "measured on an H100 80GB HBM3: bf16 matmul and a device-to-device copy"
MEASURED = "measured on an H200: bf16 matmul and read + write streams"
ESTIMATED_SUSTAINED = "estimated: the H200's measured fraction"
ESTIMATED_L2 = "estimated: {} bytes per clock and SM, SMs and boost clock; see docs/model.md"


def _rate(name: str, per_sm_clock: int) -> str:
    return f"{name}: {per_sm_clock} FLOP per clock and SM, SMs and boost clock"


# What the architecture fixes for every chip of it.
# special function results per clock and SM: 16, doubled for exp2 by Blackwell Ultra (sm_103).
_LIMITS: dict[str, dict[str, tuple[float, str]]] = {
    arch: {
        "shared_per_sm": (shared * KIB, GUIDE),
        "shared_per_block": ((shared - 1) * KIB, f"{GUIDE}: 1 KiB a block is reserved"),
        "registers_per_sm": (65536, GUIDE),
        "warps_per_sm": (warps, GUIDE),
        "blocks_per_sm": (blocks, GUIDE),
        "special_per_sm_clock": (special, special_source),
    }
    for arch, shared, warps, blocks, special, special_source in (
        ("sm_90", 228, 64, 32, 16, GUIDE_RATE),
        ("sm_100", 228, 64, 32, 16, GUIDE_RATE),
        ("sm_103", 228, 64, 32, 32, "NVIDIA, Inside Blackwell Ultra: 10.7 T exponentials/s, twice Blackwell's"),
        ("sm_120", 100, 48, 24, 16, GUIDE_RATE),
        ("sm_121", 100, 48, 24, 16, GUIDE_RATE),
    )
}

# Dense tensor FLOP per clock and SM with float32 accumulation.  GeForce halves the rate of float32 accumulation: the
# whitepaper's 209.5 TFLOP/s (RTX 5090) = 512 × 170 SMs × 2.407 GHz.  B200: 2250 TFLOP/s = 8192 × 148 × 1.856 GHz.
_TENSOR_PER_SM_CLOCK: dict[str, dict[str, int]] = {
    "sm_90": {"f8": 8192, "f16": 4096, "bf16": 4096, "tf32": 2048, "f64": 256},
    "sm_100": {"f8": 16384, "f16": 8192, "bf16": 8192, "tf32": 4096, "f64": 128},
    "sm_103": {"f8": 16384, "f16": 8192, "bf16": 8192, "tf32": 4096},
    "sm_120": {"f8": 1024, "f16": 512, "bf16": 512, "tf32": 256},
    "sm_121": {"f8": 1024, "f16": 512, "bf16": 512, "tf32": 256},
}
FP32_PER_SM_CLOCK = 256  # 128 fused multiply-adds a clock and SM, every architecture of ARCHS
# Reads that hit L2, bytes per clock and SM.  A 128 × 128 tiling that was measured on the H200 moves 10.6 TB/s of
# operands, of the 16.7 that 64 bytes give; for GeForce half of it is assumed.
L2_BYTES_PER_SM_CLOCK = {"sm_90": 64, "sm_100": 64, "sm_103": 64, "sm_120": 32, "sm_121": 32}


def _chip(
    name: str,
    product: str,
    arch: str,
    *,
    derived: bool = False,
    tensor: tuple[Mapping[str, float], str] | None = None,
    **figures: tuple[float, str],
) -> Chip:
    """A Chip from (value, source) pairs; what is not given follows from the architecture's per-SM figures."""
    found: dict[str, tuple[float, str]] = {**_LIMITS[arch], **figures}
    scale = found["sm_count"][0] * found["boost_hz"][0]
    found.setdefault("fp32_flops", (FP32_PER_SM_CLOCK * scale, _rate(GUIDE_RATE, FP32_PER_SM_CLOCK)))
    l2 = L2_BYTES_PER_SM_CLOCK[arch]
    found.setdefault("l2_bytes_per_s", (l2 * scale, ESTIMATED_L2.format(l2)))
    found.setdefault("sustained_tensor", (0.81, ESTIMATED_SUSTAINED))
    found.setdefault("sustained_memory", (0.885, ESTIMATED_SUSTAINED))
    sources = {key: source for key, (_, source) in found.items()}
    if tensor is not None:
        rates = dict(tensor[0])
        sources.update({f"tensor_flops.{dtype}": tensor[1] for dtype in rates})
    else:
        per_clock = _TENSOR_PER_SM_CLOCK[arch]
        rates = {dtype: count * scale for dtype, count in per_clock.items()}
        origin = "estimated" if derived else RTX_PAPER
        sources.update({f"tensor_flops.{dtype}": _rate(origin, count) for dtype, count in per_clock.items()})
    values: dict[str, Any] = {key: value for key, (value, _) in found.items()}
    return Chip(
        name=name, product=product, arch=arch, tensor_flops=rates, sources=sources, derived=derived, **values
    )  # fmt: skip


def _geforce(
    name: str, product: str, sms: int, boost_mhz: int, memory_gib: int, gb_per_s: int, l2_mib: int, l2_source: str
) -> Chip:
    return _chip(
        name,
        product,
        "sm_120",
        sm_count=(sms, RTX_PAPER),
        boost_hz=(boost_mhz * 1e6, RTX_PAPER),
        memory_bytes=(memory_gib * GIB, RTX_PAPER),
        memory_bytes_per_s=(gb_per_s * 1e9, RTX_PAPER),
        l2_bytes=(l2_mib * MIB, l2_source),
    )


# Dense rates of the processor that H100 and H200 SXM have in common.
HOPPER_TENSOR = {"f8": 1979e12, "f16": 989.5e12, "bf16": 989.5e12, "tf32": 494.7e12, "f64": 67e12}

_ALL = (
    _geforce("rtx5070", "NVIDIA GeForce RTX 5070", 48, 2512, 12, 672, 48, "GB205 specification pages"),
    _geforce("rtx5080", "NVIDIA GeForce RTX 5080", 84, 2617, 16, 960, 64, RTX_PAPER),
    _geforce("rtx5090", "NVIDIA GeForce RTX 5090", 170, 2407, 32, 1792, 96, RTX_PAPER),
    _chip(
        "gb10",
        "NVIDIA GB10",
        "sm_121",
        sm_count=(48, f"{SPARK_PAGE}: 6144 CUDA cores, 128 an SM"),
        boost_hz=(2418e6, DRIVER_REPORT),
        memory_bytes=(128 * GIB, SPARK_PAGE),
        memory_bytes_per_s=(273e9, SPARK_PAGE),
        l2_bytes=(24 * MIB, DRIVER_REPORT),
        tensor=(
            {dtype: count * 48 * 2418e6 for dtype, count in _TENSOR_PER_SM_CLOCK["sm_121"].items()},
            "estimated: sm_120's FLOP per clock and SM; NVIDIA states FP4 with sparsity alone (1 PFLOP/s)",
        ),
    ),
    _chip(
        "b200",
        "NVIDIA B200",
        "sm_100",
        sm_count=(148, DRIVER_REPORT),
        boost_hz=(1965e6, DRIVER_REPORT),
        memory_bytes=(180e9, HGX_SHEET),
        memory_bytes_per_s=(7.67e12, f"{DRIVER_REPORT}: 7680 bits at 2 × 3996 MHz"),
        l2_bytes=(126 * MIB, BLACKWELL_TUNING),
        fp32_flops=(75e12, HGX_SHEET),
        tensor=(
            {"f8": 4500e12, "f16": 2250e12, "bf16": 2250e12, "tf32": 1100e12, "f64": 37e12},
            HGX_SHEET,
        ),
    ),
    _chip(
        "gb300",
        "NVIDIA GB300",
        "sm_103",
        sm_count=(
            152,
            "estimated: 80 TFLOP/s float32 / 256 / 2.06 GHz; the full chip has 160 (Inside Blackwell Ultra)",
        ),
        boost_hz=(2062e6, "estimated: from the datasheet's float32 rate and 152 SMs"),
        memory_bytes=(279e9, GB300_SHEET),
        memory_bytes_per_s=(8e12, GB300_SHEET),
        l2_bytes=(126 * MIB, "estimated: as the B200 (same dies' layout)"),
        fp32_flops=(80e12, GB300_SHEET),
        tensor=({"f8": 5000e12, "f16": 2500e12, "bf16": 2500e12, "tf32": 1250e12}, GB300_SHEET),
    ),
    _chip(
        "h100",
        "NVIDIA H100 80GB HBM3",
        "sm_90",
        sm_count=(132, HOPPER_PAPER),
        boost_hz=(1980e6, DRIVER_REPORT),
        memory_bytes=(80e9, H100_SHEET),
        memory_bytes_per_s=(3.35e12, H100_SHEET),
        l2_bytes=(50 * MIB, f"{HOPPER_PAPER}, and {DRIVER_REPORT}"),
        fp32_flops=(67e12, H100_SHEET),
        tensor=(HOPPER_TENSOR, H100_SHEET),
        sustained_tensor=(0.81, f"{MEASURED_H100}: 798 of 989 TFLOP/s"),
        sustained_memory=(0.895, f"{MEASURED_H100}: 3.0 of 3.35 TB/s"),
    ),
    _chip(
        "h200",
        "NVIDIA H200",
        "sm_90",
        sm_count=(132, HOPPER_PAPER),
        boost_hz=(1980e6, DRIVER_REPORT),
        memory_bytes=(141e9, H200_SHEET),
        memory_bytes_per_s=(4.8e12, H200_SHEET),
        l2_bytes=(60 * MIB, f"{DRIVER_REPORT}; the H100 whitepaper says 50 MB"),
        fp32_flops=(67e12, H200_SHEET),
        tensor=(HOPPER_TENSOR, H200_SHEET),
        sustained_tensor=(0.81, f"{MEASURED}: 800 of 989 TFLOP/s"),
        sustained_memory=(0.885, f"{MEASURED}: 4.25 of 4.8 TB/s"),
    ),
)

CHIPS: dict[str, Chip] = {c.name: c for c in _ALL}


def chip(name: str) -> Chip:
    """The chip called ``name`` (case, ``-``, ``_`` and blanks do not matter), or the driver's for ``auto``.

    Raises UserError naming the nearest names; for ``auto`` EnvironmentLacks where no driver or GPU answers.
    """
    plain = name.lower().translate({ord(c): None for c in " -_"})
    if plain == "auto":
        return from_driver()
    if plain in CHIPS:
        return CHIPS[plain]
    if plain.startswith("nvidia"):  # a derived record has its product's name, where that product is
        with contextlib.suppress(UserError):
            found = from_driver()
            if found.name == product_name(name):
                return found
    near = nearest(plain, tuple(CHIPS))
    known = ", ".join((*CHIPS, "auto"))
    raise UserError(
        f"no chip called {name!r}", f"nearest: {', '.join(near)}; all: {known}" if near else f"known are {known}"
    )


# ---------------------------------------------------------------------------------------------------- the driver

# CUdevice_attribute values of cuda.h.
_ATTRIBUTES = {
    "clock_khz": 13, "sms": 16, "memory_khz": 36, "bus_bits": 37, "l2": 38, "threads": 39, "major": 75, "minor": 76,
    "shared_sm": 81, "registers": 82, "shared_block": 97, "blocks": 106,
}  # fmt: skip


def from_driver(device: int = 0) -> Chip:
    """The chip of a CUDA device as the driver describes it: its record here, or one derived from the answers.

    Raises EnvironmentLacks where there is no driver or no such device, UserError for an unsupported architecture.
    """
    return from_answers(*_ask_driver(device))


def devices_of(chip: Chip) -> list[int]:
    """The numbers of the visible CUDA devices that are this chip; none without a driver."""
    found = []
    for number in itertools.count():
        try:
            if from_driver(number).name == chip.name:
                found.append(number)
        except EnvironmentLacks:  # there is no such device: those before were all
            return found
        except UserError:  # one that cuTile has no code for
            continue
    raise AssertionError


def from_answers(product: str, memory_bytes: int, answers: Mapping[str, int]) -> Chip:
    """The chip that a driver's answers (the keys of _ATTRIBUTES) describe.  Raises UserError for an unsupported one."""
    arch = f"sm_{answers['major']}{answers['minor']}"
    for known in _ALL:
        if known.arch == arch and product.removeprefix("NVIDIA ").startswith(known.product.removeprefix("NVIDIA ")):
            same_size = known.sm_count == answers["sms"]
            if same_size and not _is_variant(product, known.product):
                return known
    if arch not in ARCHS:
        raise UserError(
            f"{product} is {arch}, which cuTile kernels here are not built for", f"known: {', '.join(ARCHS)}"
        )
    said = f"derived: {DRIVER_REPORT}"
    # The driver reports the memory clock in kHz; two transfers a clock.
    bandwidth = 2.0 * answers["memory_khz"] * 1e3 * answers["bus_bits"] / 8
    return _chip(
        product_name(product),
        product,
        arch,
        derived=True,
        sm_count=(answers["sms"], said),
        boost_hz=(answers["clock_khz"] * 1e3, said),
        memory_bytes=(memory_bytes, said),
        memory_bytes_per_s=(bandwidth, f"{said}: 2 × memory clock × bus width"),
        l2_bytes=(answers["l2"], said),
        shared_per_sm=(answers["shared_sm"], said),
        shared_per_block=(answers["shared_block"], said),
        registers_per_sm=(answers["registers"], said),
        warps_per_sm=(answers["threads"] // 32, said),
        blocks_per_sm=(answers["blocks"], said),
    )


def product_name(product: str) -> str:
    """A product as the name of a chip: ``nvidia-geforce-rtx-5060-ti``."""
    return "-".join(product.lower().replace("_", " ").replace("-", " ").split())


def _is_variant(product: str, known: str) -> bool:
    """Whether ``product`` is ``known`` with a suffix that names another product (RTX 5070 Ti, RTX 5090 D)."""
    rest = product.removeprefix("NVIDIA ").removeprefix(known.removeprefix("NVIDIA ")).split()
    return bool(rest) and rest[0].lower() in ("ti", "super", "d", "laptop", "max-q", "mobile")


def _ask_driver(device: int) -> tuple[str, int, dict[str, int]]:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise EnvironmentLacks("there is no CUDA driver on this machine", f"name a chip: {', '.join(CHIPS)}") from None

    def call(function: str, *arguments: Any) -> None:
        code = getattr(cuda, function)(*arguments)
        if code:
            raise EnvironmentLacks(
                f"the CUDA driver refused {function} (error {code})", f"name a chip: {', '.join(CHIPS)}"
            )

    call("cuInit", 0)
    handle = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(handle), device)
    text = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", text, 256, handle)
    size = ctypes.c_size_t()
    call("cuDeviceTotalMem_v2", ctypes.byref(size), handle)
    answers = {}
    for key, number in _ATTRIBUTES.items():
        answer = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(answer), number, handle)
        answers[key] = answer.value
    return text.value.decode(errors="replace"), size.value, answers
