"""Reads the disassembler's text (``tileirdisasm -g``, version 13.4) into :mod:`.ir`.

The text has one operation a line.  A line is split into results, name, *head* (operands and attributes), types and
location; the head with every value replaced by ``%`` is its *skeleton*.  A kernel of a thousand lines has a few dozen
different skeletons, so matching a skeleton against the operation's :class:`Form` is memoised and parsing is cheap.

Whatever the tables do not know, an operation, an attribute, a type, raises :class:`Unsupported` with the operation's
name and its Python line: nothing is ever skipped.  Text that breaks its own rules raises :class:`InvalidTileIR`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from . import ir
from .locations import parse_location


class TileIRError(ValueError):
    """Base of what can be wrong with a module.  ``location`` is the Python place, where known."""

    def __init__(self, message: str, *, op: str = "", location: ir.Location | None = None):
        super().__init__(f"{message} ({location})" if location else message)
        self.op, self.location = op, location


class Unsupported(TileIRError):
    """An operation, attribute or type that the emulator does not know; ``op`` names the operation."""


class InvalidTileIR(TileIRError):
    """Text that no Tile IR module has: malformed, or refused by the disassembler's verifier."""


# ------------------------------------------------------------------------------------------------------------- types

ELEMENTS = frozenset(
    [
        "i1",
        "i4",
        "i8",
        "i16",
        "i32",
        "i64",
        "f16",
        "bf16",
        "f32",
        "tf32",
        "f64",
        "f8E4M3FN",
        "f8E5M2",
        "f8E8M0FNU",
        "f4E2M1FN",
    ]
)  # every element type of Tile IR 13.4
_TILE = re.compile(r"tile<((?:\d+x)*)(?:ptr<(\w+)>|(\w+))>")
_TENSOR = re.compile(r"tensor_view<((?:(?:\d+|\?)x)*)(\w+)(?:, strides=\[([\d?,]*)\])?>")
_VIEW = re.compile(
    r"(partition|strided|gather_scatter)_view<tile=\(([\dx]*)\)"
    r"(?:, traversal_strides=\[([\d, ]*)\])?"
    r"(?:, padding_value = (zero|neg_zero|nan|pos_inf|neg_inf))?"
    r", (tensor_view<.*>)(?:, dim_map=\[([\d, ]*)\])?(?:, sparse_dim=(\d+))?>"
)


def _elem(name: str) -> str:
    if name not in ELEMENTS:
        raise Unsupported(f"unknown element type {name!r}")
    return name


def _ints(text: str | None) -> tuple[int, ...]:
    return tuple(int(t) for t in re.findall(r"\d+", text or ""))


def _sizes(text: str | None) -> tuple[int | None, ...]:
    return tuple(None if t == "?" else int(t) for t in re.findall(r"\d+|\?", text or ""))


@functools.lru_cache(maxsize=4096)
def parse_type(text: str) -> ir.Type:
    """One type.  Raises Unsupported."""
    if text == "token":
        return ir.TokenType()
    if m := _TILE.fullmatch(text):
        dims, pointee, elem = m.groups()
        shape = tuple(int(d) for d in dims.split("x")[:-1])
        return ir.TileType(shape, ir.PtrElem(_elem(pointee)) if pointee else _elem(elem))
    if m := _TENSOR.fullmatch(text):
        shape_text, elem, strides = m.groups()
        view = ir.TensorViewType(_elem(elem), _sizes(shape_text), _sizes(strides))
        if len(view.shape) != len(view.strides):
            raise InvalidTileIR(f"sizes and strides of different number in {text!r}")
        return view
    if m := _VIEW.fullmatch(text):
        kind, tile, traversal, padding, tensor_text, dim_map, sparse = m.groups()
        tensor = parse_type(tensor_text)
        assert isinstance(tensor, ir.TensorViewType)
        shape = _ints(tile)
        return ir.TileViewType(
            kind, shape, tensor, padding, _ints(dim_map) or tuple(range(len(shape))), _ints(traversal),
            int(sparse) if sparse else None,
        )  # fmt: skip
    raise Unsupported(f"unknown type {text[:80]!r}")


@functools.lru_cache(maxsize=4096)
def parse_types(text: str) -> tuple[ir.Type, ...]:
    """A comma-separated list of types, parenthesised or not."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "<([":
            depth += 1
        elif c in ">)]":
            depth -= 1
        elif c == "," and not depth:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return tuple(parse_type(p.strip()) for p in parts if p.strip())


# ------------------------------------------------------------------------------------------------------------- forms

# A types rule gives (operand types, result types) from the types left and right of "->", the numbers of operands and
# results, and the attributes.
Types = tuple[ir.Type, ...]
TypeRule = Callable[[Types, Types | None, int, int], tuple[Types, Types]]


def _same(left: Types, right: Types | None, operands: int, results: int) -> tuple[Types, Types]:
    return left * operands, left * results


def _arrow(left: Types, right: Types | None, operands: int, results: int) -> tuple[Types, Types]:
    """``operand types -> result types``; a single type stands for all, missing trailing ones repeat the last."""
    out = right or ()
    if len(out) == 1:
        out = out * results
    return left + left[-1:] * (operands - len(left)), out


def _last_is_result(left: Types, right: Types | None, operands: int, results: int) -> tuple[Types, Types]:
    return left, left[-1:] * results


def _mma(left: Types, right: Types | None, operands: int, results: int) -> tuple[Types, Types]:
    return left, (left[2],)


def _select(left: Types, right: Types | None, operands: int, results: int) -> tuple[Types, Types]:
    return (left[0], left[1], left[1]), (left[1],)


def _power(left: Types, right: Types | None, operands: int, results: int) -> tuple[Types, Types]:
    return left, left[:1]  # base and exponent; the result has the base's type


def _insert(left: Types, right: Types | None, operands: int, results: int) -> tuple[Types, Types]:
    return left[:2] + (parse_type("tile<i32>"),) * (operands - 2), left[1:2]


def _extract(left: Types, right: Types | None, operands: int, results: int) -> tuple[Types, Types]:
    return left[:1] + (parse_type("tile<i32>"),) * (operands - 1), right or ()


def _tokens(left: Types, right: Types | None, operands: int, results: int) -> tuple[Types, Types]:
    return (ir.TokenType(),) * operands, (ir.TokenType(),) * results


def _tensor_view(left: Types, right: Types | None, operands: int, results: int) -> tuple[Types, Types]:
    # ``tile<i32> -> view`` or, where nothing is dynamic, ``view``; the pointer's type is not printed.
    view = (right or left)[0]
    assert isinstance(view, ir.TensorViewType)
    pointer = ir.TileType((), ir.PtrElem(view.elem))
    return (pointer,) + (left[:1] * (operands - 1) if right else ()), (view,)


def _pview(left: Types, right: Types | None, operands: int, results: int) -> tuple[Types, Types]:
    view = left[0]
    assert isinstance(view, ir.TileViewType)
    return (view.tensor,), left


# Optional clauses that may follow a head, in any order.
_CLAUSES: dict[str, re.Pattern[str]] = {
    "rounding": re.compile(r"rounding<(?P<rounding>\w+)>"),
    "flush_to_zero": re.compile(r"(?P<flush_to_zero>flush_to_zero)"),
    "propagate_nan": re.compile(r"(?P<propagate_nan>propagate_nan)"),
    "fast_acc": re.compile(r"(?P<fast_acc>fast_acc)"),
    "saturating": re.compile(r"(?P<saturating>saturating)"),
    "overflow": re.compile(r"overflow<(?P<overflow>\w+)>"),
    "token": re.compile(r"token ?= ?(?P<token>%)"),
    "inbounds": re.compile(r"inbounds ?= ?\[(?P<inbounds>[\w, ]*)\]"),
    "hints": re.compile(r"optimization_hints ?= ?(?P<hints><.*>)"),
}
_CLAUSE_DEFAULT: dict[str, Any] = {
    "flush_to_zero": False, "propagate_nan": False, "fast_acc": False, "saturating": False,
    "overflow": "none", "inbounds": (), "token": None, "hints": None,
}  # fmt: skip
# Named places of a head; each becomes an attribute of that name.
_PLACES = {
    "signedness": "signed|unsigned", "lhs_signedness": "signed|unsigned", "rhs_signedness": "signed|unsigned",
    "predicate": "equal|not_equal|less_than|less_than_or_equal|greater_than|greater_than_or_equal",
    "ordering": "ordered|unordered",
    "semantics": "weak|relaxed|acquire|release|acq_rel", "scope": "tl_blk|device|sys",
    "mode": "and|or|xor|add|addf|max|min|umax|umin|xchg",
    "dim": r"\d+", "permutation": r"[\d, ]*", "reverse": "true|false",
    "shape": r"[%\d, ]*", "strides": r"[%\d, ]*", "symbol": r"@[\w$.-]+", "assume": r"[\w<>?,\- ]+",
    "identities": r"[^\]]*",
}  # fmt: skip
_PLACE_VALUE: dict[str, Callable[[str], Any]] = {
    "dim": int,
    "permutation": _ints,
    "reverse": lambda t: t == "true",
    "shape": lambda t: tuple(None if p == "%" else int(p) for p in re.findall(r"%|\d+", t)),
    "strides": lambda t: tuple(None if p == "%" else int(p) for p in re.findall(r"%|\d+", t)),
    "symbol": lambda t: t[1:],
    "assume": lambda t: _assumption(t),
    "identities": lambda t: tuple(_identity(p) for p in t.split(",") if p.strip()),
    "inbounds": lambda t: tuple(p.strip() == "true" for p in t.split(",") if p.strip()),
    "flush_to_zero": bool, "propagate_nan": bool, "fast_acc": bool, "saturating": bool,
}  # fmt: skip


def _assumption(text: str) -> ir.Assumption:
    if m := re.fullmatch(r"div_by<(\d+)>", text):
        return ir.Assumption("div_by", divisor=int(m[1]))
    if m := re.fullmatch(r"bounded<(-?\d+|\?), (-?\d+|\?)>", text):
        low, high = (None if b == "?" else int(b) for b in m.groups())
        return ir.Assumption("bounded", low=low, high=high)
    raise Unsupported(f"assume: unknown predicate {text[:60]!r}", op="assume")


def _identity(text: str) -> ir.Dense:
    value, _, elem = (p.strip() for p in text.partition(":"))
    if not elem:  # MLIR leaves out the suffix of its default types: i1, i64 and f64
        elem = "i1" if value in ("true", "false") else "i64" if re.fullmatch(r"-?\d+", value) else "f64"
    return _literal(value, elem)


@dataclass(frozen=True)
class Form:
    """How one operation is written: ``head`` with ``{places}`` and ``%`` operands, then optional ``clauses``.

    ``many`` are heads in which ``%*`` (any number of comma-separated values) occurs.  ``defaults`` are the values of
    attributes that the text omits.
    """

    head: str
    types: TypeRule = _same
    clauses: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        out = re.escape(self.head).replace(re.escape("%*"), "(?:%(?:, %)*)?").replace("\\ ", " ")
        for place, values in _PLACES.items():
            out = out.replace(re.escape("{" + place + "}"), f"(?P<{place}>{values})")
        out = out.replace(re.escape("[?"), "(?:").replace(re.escape("?]"), ")?")
        return re.compile(out + r"(?P<rest>.*)")


def _forms() -> dict[str, Form]:
    near, full = {"rounding": "nearest_even"}, {"rounding": "full"}
    tko = ("token", "hints", "inbounds")
    forms = {
        "make_token": Form("", _tokens), "join_tokens": Form("%*", _tokens),
        "get_tile_block_id": Form(""), "get_num_tile_blocks": Form(""),
        "get_index_space_shape": Form("%", _arrow), "get_tensor_shape": Form("%", _arrow),
        "assume": Form("{assume}, %"),
        "make_tensor_view": Form("%, shape = [{shape}], strides = [{strides}]", _tensor_view),
        "load_view_tko": Form("{semantics} [?{scope} ?]%[%*]", _arrow, tko, {"scope": None}),
        "store_view_tko": Form("{semantics} [?{scope} ?]%, %[%*]", _arrow, tko, {"scope": None}),
        "atomic_red_view_tko": Form("{semantics} {scope} %[%*], {mode}, %", _arrow, ("token", "inbounds")),
        "load_ptr_tko": Form("{semantics} [?{scope} ?]%*", _arrow, tko, {"scope": None}),
        "store_ptr_tko": Form("{semantics} [?{scope} ?]%*", _arrow, tko, {"scope": None}),
        "atomic_rmw_tko": Form("{semantics} {scope} %, {mode}, %[?, %?]", _arrow, ("token",)),
        "atomic_cas_tko": Form("{semantics} {scope} %, %, %[?, %?]", _arrow, ("token",)),
        "print_tko": Form('"[?, %*?]', _arrow, ("token",)), "assert": Form('%, "', _arrow),
        "gdc_wait_tko": Form("", _tokens, ("token",)), "gdc_launch_dependents_tko": Form("", _tokens, ("token",)),
        "get_global": Form("{symbol}"),
        "iota": Form(""), "reshape": Form("%", _arrow), "broadcast": Form("%", _arrow), "bitcast": Form("%", _arrow),
        "pack": Form("%", _arrow), "unpack": Form("%", _arrow), "offset": Form("%, %", _arrow),
        "permute": Form("% [{permutation}]", _arrow), "cat": Form("%, % dim = {dim}", _arrow),
        "extract": Form("%[%*]", _extract), "insert": Form("%, %[%*]", _insert), "select": Form("%, %, %", _select),
        "int_to_ptr": Form("%", _arrow), "ptr_to_int": Form("%", _arrow), "ptr_to_ptr": Form("%", _arrow),
        "cmpi": Form("{predicate} %, %, {signedness}", _arrow), "cmpf": Form("{predicate} {ordering} %, %", _arrow),
        "divi": Form("%, % {signedness}", clauses=("rounding",), defaults={"rounding": "zero"}),
        "exti": Form("% {signedness}", _arrow), "trunci": Form("%", _arrow, ("overflow",)),
        "itof": Form("% {signedness}", _arrow, ("rounding",), near),
        "ftoi": Form("% {signedness}", _arrow, ("rounding", "saturating"), {"rounding": "nearest_int_to_zero"}),
        "ftof": Form("%", _arrow, ("rounding",), near),
        "fma": Form("%, %, %", clauses=("rounding", "flush_to_zero"), defaults=near),
        "sqrt": Form("%", clauses=("rounding", "flush_to_zero"), defaults=near),
        "rsqrt": Form("%", clauses=("flush_to_zero",)), "exp2": Form("%", clauses=("flush_to_zero",)),
        "exp": Form("%", clauses=("rounding",), defaults=full), "tanh": Form("%", clauses=("rounding",), defaults=full),
        "negi": Form("%", clauses=("overflow",)), "fpowi": Form("%, %", _power),
        "mmaf": Form("%, %, %", _mma, ("fast_acc",)), "mmaf_scaled": Form("%, %, %, %, %", _mma),
        "mmai": Form("%, %, % {lhs_signedness} {rhs_signedness}", _mma),
        "reduce": Form("%* dim={dim} identities=[{identities}]", _arrow),
        "scan": Form("%* dim={dim} reverse={reverse} identities=[{identities}]", _arrow),
        "yield": Form("%*", _arrow), "continue": Form("%*", _arrow), "break": Form("%*", _arrow),
        "return": Form("%*", _arrow),
    }  # fmt: skip
    forms |= {f"make_{kind}_view": Form("%", _pview) for kind in ("partition", "strided", "gather_scatter")}
    forms |= {
        n: Form("%")
        for n in ["absf", "negf", "ceil", "floor", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "absi"]
    }
    forms |= {n: Form("%, %") for n in ["atan2", "fpowf", "remf", "andi", "ori", "xori", "mulhii"]}
    forms |= {n: Form("%, %", clauses=("overflow",)) for n in ["addi", "subi", "muli", "shli"]}
    forms |= {n: Form("%, % {signedness}") for n in ["remi", "shri", "maxi", "mini"]}
    forms |= {
        n: Form("%, %", clauses=("rounding", "flush_to_zero"), defaults=near) for n in ["addf", "subf", "mulf", "divf"]
    }
    forms |= {n: Form("%, %", clauses=("flush_to_zero", "propagate_nan")) for n in ["maxf", "minf"]}
    return forms


FORMS: Mapping[str, Form] = MappingProxyType(_forms())
REGION_OPS = frozenset({"for", "loop", "if", "reduce", "scan"})


@functools.lru_cache(maxsize=8192)
def _match(name: str, skeleton: str) -> tuple[Mapping[str, Any], int | None]:
    """The attributes that ``skeleton`` spells for operation ``name``, and which of its values is the token."""
    form = FORMS.get(name)
    if form is None:
        raise Unsupported(f"unknown operation {name!r}", op=name)
    m = form.pattern.fullmatch(skeleton)
    if m is None:
        raise Unsupported(f"{name}: unknown form {skeleton[:120]!r}", op=name)
    attrs = {c: _CLAUSE_DEFAULT[c] for c in form.clauses if c in _CLAUSE_DEFAULT} | dict(form.defaults)
    found = m.groupdict()
    rest = found.pop("rest")
    start = m.start("rest")
    token_at = None
    while rest.strip():
        start += len(rest) - len(rest.lstrip())
        rest = rest.lstrip()
        for clause in form.clauses:
            if c := _CLAUSES[clause].match(rest):
                found |= c.groupdict()
                if clause == "token":
                    token_at = skeleton[: start + c.start("token")].count("%")
                start, rest = start + c.end(), rest[c.end() :]
                break
        else:
            raise Unsupported(f"{name}: unknown attribute {rest[:80]!r}", op=name)
    for key, value in found.items():
        if value is not None:
            attrs[key] = _PLACE_VALUE[key](value) if key in _PLACE_VALUE else value
    attrs.pop("token", None)
    return MappingProxyType(attrs), token_at


# ---------------------------------------------------------------------------------------------------------- literals


def _literal(text: str, elem: str) -> ir.Dense:
    """A printed constant: a number, a nested list, or a string of raw bytes in hexadecimal."""
    if text.startswith('"'):
        return ir.Dense(raw=bytes.fromhex(text.strip('"')[2:]))
    if text.startswith("["):
        items = text.replace("[", " ").replace("]", " ").split(",")
        bits = any(i.strip().startswith("0x") for i in items)
        if not bits:
            return ir.Dense(tuple(_number(i.strip(), elem) for i in items))
        # A list may mix decimal numbers and bit patterns: keep each as a one-element literal's bits or value.
        return ir.Dense(tuple(_mixed(i.strip(), elem) for i in items))
    if text.startswith("0x") and not elem.startswith("i"):
        return ir.Dense(int(text, 16), bits=True)
    return ir.Dense(_number(text, elem))


def _mixed(text: str, elem: str) -> float:
    if not text.startswith("0x"):
        return float(_number(text, elem))
    return _float_of_bits(int(text, 16), elem)


# Exponent and fraction widths of the formats that have infinities or NaNs which a decimal can not spell.
_WIDTHS = {
    "f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "tf32": (8, 10), "f64": (11, 52),
    "f8E4M3FN": (4, 3), "f8E5M2": (5, 2),
}  # fmt: skip


def _float_of_bits(bits: int, elem: str) -> float:
    exponent, fraction = _WIDTHS.get(elem, (8, 0))
    if elem not in _WIDTHS or elem == "f8E4M3FN" or bits & ((1 << fraction) - 1):
        return float("nan")
    return float("-inf") if bits >> (exponent + fraction) & 1 else float("inf")


def _number(text: str, elem: str) -> int | float | bool:
    try:
        if elem == "i1":
            return {"true": True, "false": False}[text]
        return int(text) if elem.startswith("i") else float(text)
    except (ValueError, KeyError):
        raise InvalidTileIR(f"not a literal of {elem}: {text[:40]!r}") from None


def unescape(text: str) -> str:
    r"""A printed string's meaning: ``\0A`` and ``\C3\A9`` are bytes of UTF-8, ``\\`` a backslash."""
    raw = re.sub(
        rb"\\(\\|[0-9A-Fa-f]{2})",
        lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1], 16)]),
        text.encode(),
    )
    return raw.decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------------------ parser

_LINE = re.compile(r"(?:((?:%[\w$.-]+(?::\d+)?(?:, )?)+) = )?([a-z]\w*) ?(.*)")
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_CONSTANT = re.compile(r"<(\w+): (.*)> : (.*)", re.S)
_PARAMETER = re.compile(r"(%[\w$.-]+): (.*?)(?: loc\([^()]*\))?(?:, (?=%)|$)")
_FOR = re.compile(
    r"(unsigned )?(%[\w$.-]+) in \((\S+) to (\S+), step (\S+)\) : (tile<\w+>)"
    r"(?: iter_values\((.*)\) -> \((.*)\))? \{"
)
_LOOP = re.compile(r"(?:iter_values\((.*?)\) )?(?:: (.*?) )?(?:-> (.*?) )?\{")
_IF = re.compile(r"(%\S+) (?:-> \((.*)\) )?\{")
_ENTRY = re.compile(r"entry @([\w$.-]+)\((.*)\)(?: optimization_hints=(<.*>))? \{")
_GLOBAL = re.compile(r"global (?:\w+ )*@([\w$.-]+)(.*?)<(\w+): (.*)> : (.*)", re.S)


class _Parser:
    def __init__(self, text: str):
        self.lines: list[str] = []
        self.locations: dict[str, str] = {}
        for line in text.split("\n"):
            stripped = line.strip()
            if stripped.startswith("#"):
                key, _, value = stripped.partition(" = ")
                self.locations[key] = value
            elif stripped:
                self.lines.append(stripped)
        self.at = 0
        self.names: list[str] = []
        self.scope: dict[str, int] = {}
        self.value_types: list[ir.Type] = []

    # -- values

    def define(self, name: str, kind: ir.Type) -> int:
        number = len(self.names)
        self.names.append(name)
        self.value_types.append(kind)
        self.scope[name] = number
        return number

    def define_results(self, text: str | None, types: Types) -> tuple[int, ...]:
        names: list[str] = []
        for group in (text or "").split(", ") if text else ():
            base, _, count = group.partition(":")
            names += [f"{base}#{i}" for i in range(int(count))] if count else [base]
        if len(names) != len(types):
            raise InvalidTileIR(f"{len(names)} results but {len(types)} types")
        return tuple(self.define(n, t) for n, t in zip(names, types, strict=True))

    def use(self, name: str) -> int:
        try:
            return self.scope[name]
        except KeyError:
            raise InvalidTileIR(f"value {name} is used before it is defined") from None

    # -- lines

    def next(self) -> str:
        if self.at >= len(self.lines):
            raise InvalidTileIR("the text ends inside a region")
        self.at += 1
        return self.lines[self.at - 1]

    def module(self) -> ir.Module:
        globals_: list[ir.Global] = []
        while True:
            line = self.next()
            if line.startswith("global "):
                globals_.append(self.global_(line))
            elif m := _ENTRY.match(line):
                name, parameters, hints = m.groups()
                body, _ = self.region(_parameters(parameters))
                if self.at != len(self.lines):
                    raise Unsupported(f"text after the entry: {self.lines[self.at][:80]!r}")
                return ir.Module(
                    name, body, tuple(globals_), {"text": hints} if hints else {}, tuple(self.names), self.locations
                )  # fmt: skip
            else:
                raise Unsupported(f"unknown module item {line[:80]!r}")

    def global_(self, line: str) -> ir.Global:
        body, _ = _split_location(line)
        m = _GLOBAL.fullmatch(body)
        if m is None:
            raise Unsupported(f"unknown form of a global: {line[:100]!r}", op="global")
        name, _, elem, value, kind = m.groups()
        tile = parse_type(kind.strip())
        assert isinstance(tile, ir.TileType)
        return ir.Global(name, tile, _literal(value, elem))

    def region(self, parameters: list[tuple[str, ir.Type]]) -> tuple[ir.Region, str]:
        """Reads operations up to the closing brace, and returns that line's remainder too."""
        outer = self.scope
        self.scope = dict(outer)
        arguments = tuple(self.define(n, t) for n, t in parameters)
        ops: list[ir.Op] = []
        while True:
            line = self.next()
            if line.startswith("}"):
                self.scope = outer
                return ir.Region(arguments, tuple(t for _, t in parameters), tuple(ops)), line[1:].strip()
            ops.append(self.op(line))

    def op(self, line: str) -> ir.Op:
        location: str | None = None
        try:
            m = _LINE.match(line)
            if m is None:
                raise InvalidTileIR(f"not an operation: {line[:80]!r}")
            results, name, rest = m.groups()
            if name in REGION_OPS:
                return getattr(self, f"{name}_op")(results, name, rest)
            rest, location = _split_location(rest)
            if name == "constant":
                return self.constant(results, rest, location)
            return self.plain(results, name, rest, location)
        except TileIRError as error:
            if error.location is None and location is not None:
                raise type(error)(str(error), op=error.op, location=parse_location(location, self.locations)) from None
            raise

    def constant(self, results: str | None, rest: str, location: str | None) -> ir.Op:
        m = _CONSTANT.fullmatch(rest)
        if m is None:
            raise Unsupported(f"constant: unknown form {rest[:80]!r}", op="constant")
        elem, value, kind = m.groups()
        types = (parse_type(kind),)
        attrs = {"value": _literal(value, elem)}
        return ir.Op("constant", self.define_results(results, types), (), attrs, (), types, (), location)

    def split(self, name: str, rest: str) -> tuple[Mapping[str, Any], tuple[int, ...], Types, Types | None, list[str]]:
        """Attributes, operands and types of everything after the name: ``head : left -> right``."""
        strings: list[str] = []
        if '"' in rest:
            strings = [unescape(s) for s in _STRING.findall(rest)]
            rest = _STRING.sub('"', rest)
        head, colon, types = rest.rpartition(" : ") if " : " in rest else rest.rpartition(": ")
        if not colon:
            head, arrow, types = rest.partition(" -> ")
            types = arrow + types
        left_text, arrow, right_text = types.partition("-> ")
        left, right = parse_types(left_text.strip()), parse_types(right_text) if arrow else None
        names = _VALUE.findall(head)
        attrs, token_at = _match(name, _VALUE.sub("%", head).strip())
        if token_at is not None:
            self.use(names.pop(token_at))
        return attrs, tuple([self.use(n) for n in names]), left, right, strings

    def plain(self, results: str | None, name: str, rest: str, location: str | None) -> ir.Op:
        attrs, operands, left, right, strings = self.split(name, rest)
        if strings:
            attrs = {**attrs, "format" if name == "print_tko" else "message": strings[0]}
        count = sum(int(g.partition(":")[2] or 1) for g in results.split(", ")) if results else 0
        if name == "print_tko":  # the token type stands right of the arrow, or alone where nothing is printed
            operand_types, result_types = left, (right or ())
        elif name in ("return", "break", "continue", "yield", "assert"):
            operand_types, result_types = left, ()
        else:
            operand_types, result_types = FORMS[name].types(left, right, len(operands), count)
        if len(operand_types) != len(operands):
            raise InvalidTileIR(f"{name}: {len(operands)} operands but {len(operand_types)} types")
        return ir.Op(
            name, self.define_results(results, result_types), operands, attrs, operand_types, result_types, (), location
        )  # fmt: skip

    # -- operations with regions

    def for_op(self, results: str | None, name: str, rest: str) -> ir.Op:
        m = _FOR.fullmatch(rest)
        if m is None:
            raise Unsupported(f"for: unknown form {rest[:120]!r}", op="for")
        unsigned, induction, low, high, step, kind, values, types_text = m.groups()
        types = parse_types(types_text or "")
        carried = _assignments(values)
        operands = tuple(self.use(v) for v in (low, high, step, *(v for _, v in carried)))
        index = parse_type(kind)
        parameters = [(induction, index), *((n, t) for (n, _), t in zip(carried, types, strict=True))]
        body, tail = self.region(parameters)
        return ir.Op(
            "for", self.define_results(results, types), operands, {"unsigned": bool(unsigned)},
            (index,) * 3 + types, types, (body,), _location_of(tail),
        )  # fmt: skip

    def loop_op(self, results: str | None, name: str, rest: str) -> ir.Op:
        m = _LOOP.fullmatch(rest)
        if m is None:
            raise Unsupported(f"loop: unknown form {rest[:120]!r}", op="loop")
        values, in_types, out_types = m.groups()
        carried, types = _assignments(values), parse_types(in_types or "")
        operands = tuple(self.use(v) for _, v in carried)
        body, tail = self.region([(n, t) for (n, _), t in zip(carried, types, strict=True)])
        out = parse_types(out_types or "")
        return ir.Op(
            "loop", self.define_results(results, out), operands, {}, types, out, (body,), _location_of(tail)
        )  # fmt: skip

    def if_op(self, results: str | None, name: str, rest: str) -> ir.Op:
        m = _IF.fullmatch(rest)
        if m is None:
            raise Unsupported(f"if: unknown form {rest[:120]!r}", op="if")
        condition, types_text = m.groups()
        types = parse_types(types_text or "")
        then, tail = self.region([])
        other = ir.Region((), (), ())
        if tail.startswith("else"):
            other, tail = self.region([])
        operands = (self.use(condition),)
        return ir.Op(
            "if", self.define_results(results, types), operands, {}, (parse_type("tile<i1>"),), types, (then, other),
            _location_of(tail),
        )  # fmt: skip

    def reduce_op(self, results: str | None, name: str, rest: str) -> ir.Op:
        attrs, operands, left, right, _ = self.split(name, rest)
        header = self.next()
        if not (header.startswith("(") and header.endswith("{")):
            raise InvalidTileIR(f"{name}: no region follows")
        body, tail = self.region(_parameters(header[1 : header.rindex(")")]))
        types = right or ()
        return ir.Op(
            name, self.define_results(results, types), operands, attrs, left, types, (body,), _location_of(tail)
        )  # fmt: skip

    scan_op = reduce_op


def _split_location(line: str) -> tuple[str, str | None]:
    at = line.rfind("loc(")
    if at < 0 or not line.endswith(")") or (at and line[at - 1] != " "):
        return line, None
    key = line[at + 4 : -1]
    return line[: max(at - 1, 0)].rstrip(), None if key == "unknown" else key


def _location_of(tail: str) -> str | None:
    return _split_location(tail)[1]


def _parameters(text: str) -> list[tuple[str, ir.Type]]:
    return [(m[1], parse_type(m[2].strip())) for m in _PARAMETER.finditer(text)]


def _assignments(text: str | None) -> list[tuple[str, str]]:
    return [(a, b) for a, _, b in (p.partition(" = ") for p in (text or "").split(", ")) if b]


def parse(text: str) -> ir.Module:
    """The module that ``text`` spells.  Raises Unsupported and InvalidTileIR."""
    try:
        return _Parser(text).module()
    except RecursionError:
        raise InvalidTileIR("regions are nested too deeply") from None
