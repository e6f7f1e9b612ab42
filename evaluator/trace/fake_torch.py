"""The module that a candidate gets for ``torch``: dtypes, workspaces, views and device queries; nothing that computes.

Real torch is never loaded in the child (seconds, and hundreds of megabytes).  Whatever is not listed here is refused
with its name; the refusal is an AttributeError, so ``hasattr`` and ``getattr`` with a default behave.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Mapping
from typing import Any, Protocol

from .dataless import Dataless, Shape, contiguous_strides
from .refusal import Refusal
from .symbolic import Number, int_like

OFFER = (
    "of torch, launch can use dtypes, empty, zeros, empty_like, zeros_like, views of arrays and device queries; "
    "everything that computes belongs in a kernel"
)


class Dtype:
    """torch.dtype.  ``code`` is the plan's name for it."""

    def __init__(self, name: str, code: str, bits: int, kind: str) -> None:
        self.name, self.code, self.itemsize, self.kind = name, code, bits // 8, kind

    is_floating_point = property(lambda self: self.kind == "float")
    is_complex = property(lambda self: False)
    is_signed = property(lambda self: self.kind in ("float", "int"))

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> Any:
        return self.name


Dtype.__name__ = Dtype.__qualname__ = "dtype"

# name, code in plans, bits, kind, other names
_DTYPES = (
    ("bool", "bool", 8, "bool", ()),
    ("int8", "i8", 8, "int", ()),
    ("int16", "i16", 16, "int", ("short",)),
    ("int32", "i32", 32, "int", ("int",)),
    ("int64", "i64", 64, "int", ("long",)),
    ("uint8", "u8", 8, "uint", ()),
    ("uint16", "u16", 16, "uint", ()),
    ("uint32", "u32", 32, "uint", ()),
    ("uint64", "u64", 64, "uint", ()),
    ("float16", "f16", 16, "float", ("half",)),
    ("bfloat16", "bf16", 16, "float", ()),
    ("float32", "f32", 32, "float", ("float",)),
    ("float64", "f64", 64, "float", ("double",)),
    ("float8_e4m3fn", "f8e4m3", 8, "float", ()),
    ("float8_e5m2", "f8e5m2", 8, "float", ()),
)
BY_CODE: dict[str, Dtype] = {code: Dtype(name, code, bits, kind) for name, code, bits, kind, _ in _DTYPES}

# dtype: bits of mantissa (with the hidden one), least normal exponent, largest value
_FLOAT_FACTS = {
    "f16": (11, -14, 65504.0),
    "bf16": (8, -126, 3.3895313892515355e38),
    "f32": (24, -126, 3.4028234663852886e38),
    "f64": (53, -1022, 1.7976931348623157e308),
    "f8e4m3": (4, -6, 448.0),
    "f8e5m2": (3, -14, 57344.0),
}


class Device:
    """torch.device: always the one GPU that the plan is for."""

    def __init__(self, kind: Any = "cuda", index: Any = 0) -> None:
        text = str(kind) if not isinstance(kind, Device) else "cuda:0"
        if text.split(":")[0] != "cuda":
            raise Refusal("wrong-device", f"device {text!r}: workspaces live on the GPU, write device=x.device")
        self.type, self.index = "cuda", 0

    def __repr__(self) -> str:
        return "device(type='cuda', index=0)"

    def __str__(self) -> str:
        return "cuda:0"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) or other in ("cuda", "cuda:0")

    def __hash__(self) -> int:
        return hash("cuda:0")


Device.__name__ = Device.__qualname__ = "device"


class Stream:
    """torch.cuda.Stream: there is one, and it can only be handed to ct.launch."""

    cuda_stream = 0

    def __getattr__(self, name: str) -> Any:
        raise Refusal("torch-compute", f"stream.{name}: a plan runs its launches in order on one stream")


class Allocator(Protocol):
    """What the stand-in needs from the tracer."""

    def workspace(self, shape: Shape, dtype: Dtype, fill: int | None) -> Tensor: ...
    def num_sms(self) -> Number: ...
    def chip(self, fact: str) -> Any: ...


class Tensor(Dataless):
    """torch.Tensor without data: see :class:`evaluator.trace.dataless.Dataless`."""

    is_cuda = True
    is_cpu = is_sparse = is_quantized = requires_grad = is_meta = False
    layout = "torch.strided"
    grad = None

    @property
    def device(self) -> Device:
        return Device()

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    def element_size(self) -> int:
        return self.itemsize

    @property
    def nbytes(self) -> Number:
        return self.numel() * self.itemsize

    def is_floating_point(self) -> bool:
        return bool(self.dtype.is_floating_point)

    def get_device(self) -> int:
        return 0

    def detach(self) -> Tensor:
        return self

    def new_empty(self, *size: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
        return _workspace(self._tracer, size, dtype or self.dtype, device, options, None)

    def new_zeros(self, *size: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
        return _workspace(self._tracer, size, dtype or self.dtype, device, options, 0)

    def __getattr__(self, name: str) -> Any:
        if name == "data_ptr":
            raise Refusal(
                "torch-compute", "data_ptr(): a plan has no addresses; every buffer starts at a multiple of 256"
            )
        raise Refusal("torch-compute", f"tensor.{name} is refused: {OFFER}")

    def __repr__(self) -> str:
        return f"Tensor({self._buffer})"

    def __setitem__(self, key: Any, value: Any) -> None:
        raise Refusal("torch-compute", f"writing to an array from Python is refused: {OFFER}")

    def __hash__(self) -> int:
        return id(self)


def _refused_operator(name: str) -> Any:
    def method(self: Tensor, *others: Any) -> Any:
        raise Refusal("torch-compute", f"tensor.{name} reads or computes data: {OFFER}")

    method.__name__ = name
    return method


_OPERATORS = """add sub mul truediv floordiv mod pow matmul radd rsub rmul rtruediv rfloordiv rmod rpow rmatmul
iadd isub imul itruediv neg pos abs invert and or xor lt le gt ge eq ne bool int float index complex contains
lshift rshift"""
for _name in _OPERATORS.split():
    setattr(Tensor, f"__{_name}__", _refused_operator(f"__{_name}__"))


def _workspace(
    allocator: Allocator, size: Any, dtype: Any, device: Any, options: dict[str, Any], fill: int | None
) -> Tensor:
    if device is not None:
        Device(device)
    refused = sorted(set(options) - {"requires_grad", "pin_memory", "layout", "memory_format"})
    if refused or any(options.values()):
        raise Refusal(
            "torch-compute", f"a workspace takes sizes, dtype and device, not {', '.join(refused or options)}"
        )
    if not isinstance(dtype, Dtype):
        raise TypeError(f"dtype must be a torch.dtype, not {type(dtype).__name__}")
    shape = Shape(size[0]) if len(size) == 1 and isinstance(size[0], tuple | list) else Shape(size)
    if not all(int_like(s) for s in shape):
        raise TypeError("a workspace's sizes are ints")
    return allocator.workspace(shape, dtype, fill)


class Refusing(types.ModuleType):
    """A module whose unknown names are refused with the reason."""

    def __init__(self, name: str, why: str = OFFER) -> None:
        super().__init__(name, why)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # the import system asks for __path__, __spec__ …
        raise Refusal("torch-compute", f"{self.__name__}.{name} is refused: {self.__doc__}")


def _finfo(dtype: Any = None) -> Any:
    digits, exponent, largest = _FLOAT_FACTS[(dtype or BY_CODE["f32"]).code]
    tiny = 2.0**exponent
    return types.SimpleNamespace(
        bits=(dtype or BY_CODE["f32"]).itemsize * 8, max=largest, min=-largest, eps=2.0 ** (1 - digits),
        tiny=tiny, smallest_normal=tiny, dtype=str(dtype or BY_CODE["f32"]).removeprefix("torch."),
    )  # fmt: skip


def _iinfo(dtype: Any) -> Any:
    bits = dtype.itemsize * 8
    if dtype.kind not in ("int", "uint"):
        raise TypeError(f"iinfo wants an integer dtype, not {dtype}")
    signed = dtype.kind == "int"
    return types.SimpleNamespace(
        bits=bits, max=2 ** (bits - signed) - 1, min=-(2 ** (bits - 1)) if signed else 0, dtype=dtype.name
    )


class _NoGrad(contextlib.ContextDecorator):
    """no_grad, inference_mode: harmless, since nothing is computed."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        return None


def module(allocator: Allocator) -> types.ModuleType:
    """The stand-in.  ``allocator`` records workspaces and answers for the chip."""
    torch = Refusing("torch")
    names: dict[str, Any] = {}
    for name, code, _bits, _kind, others in _DTYPES:
        names.update(dict.fromkeys((name, *others), BY_CODE[code]))

    def empty(*size: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
        size = (options.pop("size"),) if "size" in options else size
        return _workspace(allocator, size, dtype or BY_CODE["f32"], device, options, None)

    def zeros(*size: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
        size = (options.pop("size"),) if "size" in options else size
        return _workspace(allocator, size, dtype or BY_CODE["f32"], device, options, 0)

    def like(fill: int | None) -> Any:
        def make(x: Tensor, *, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
            out = _workspace(allocator, x.shape, dtype or x.dtype, device, options, fill)
            # PyTorch keeps the strides of a dense array; ours would differ, so only the usual case is offered.
            if tuple(x._strides) != contiguous_strides(x.shape) and not x.is_contiguous():
                raise Refusal("torch-compute", "empty_like of a strided view: write torch.empty(x.shape, …)")
            return out

        return make

    def by_method(name: str) -> Any:
        def call(x: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(x, Tensor):
                raise TypeError(f"torch.{name} wants a tensor, not {type(x).__name__}")
            return getattr(x, name)(*args, **kwargs)

        return call

    views = (
        "transpose swapaxes permute movedim moveaxis t unsqueeze squeeze select narrow flatten unflatten reshape ravel "
    )
    views += "unbind split chunk numel is_floating_point"
    names.update({name: by_method(name) for name in views.split()})
    names.update(
        empty=empty, zeros=zeros, empty_like=like(None), zeros_like=like(0), Tensor=Tensor, Size=Shape, device=Device,
        dtype=Dtype, Stream=Stream, finfo=_finfo, iinfo=_iinfo, no_grad=_NoGrad, inference_mode=_NoGrad,
        inf=math.inf, nan=math.nan, pi=math.pi, e=math.e, strided="torch.strided", contiguous_format=None,
        preserve_format=None, is_tensor=lambda x: isinstance(x, Tensor), get_default_dtype=lambda: BY_CODE["f32"],
        __version__="2.13.0",
    )  # fmt: skip
    for name, value in names.items():
        setattr(torch, name, value)
    torch.cuda = _cuda(allocator)  # type: ignore[attr-defined]
    return torch


def _cuda(allocator: Allocator) -> types.ModuleType:
    cuda = Refusing("torch.cuda")

    def capability(device: Any = None) -> tuple[int, int]:
        digits = str(allocator.chip("arch")).removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])

    def properties(device: Any = None) -> Any:
        class Properties:
            name = property(lambda self: allocator.chip("product"))
            major = property(lambda self: capability()[0])
            minor = property(lambda self: capability()[1])
            multi_processor_count = property(lambda self: allocator.num_sms())
            total_memory = property(lambda self: allocator.chip("memory_bytes"))
            L2_cache_size = property(lambda self: allocator.chip("l2_bytes"))
            shared_memory_per_block_optin = property(lambda self: allocator.chip("shared_per_block"))
            shared_memory_per_multiprocessor = property(lambda self: allocator.chip("shared_per_sm"))
            regs_per_multiprocessor = property(lambda self: allocator.chip("registers_per_sm"))
            warp_size = 32

            def __getattr__(self, name: str) -> Any:
                raise Refusal("torch-compute", f"device properties have no {name} here")

        return Properties()

    answers: Mapping[str, Any] = {
        "Stream": Stream,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "is_available": lambda: True,
        "get_device_properties": properties,
        "get_device_capability": capability,
        "get_device_name": lambda device=None: allocator.chip("product"),
        "device": _NoGrad,
    }
    for name, value in answers.items():
        setattr(cuda, name, value)
    return cuda
