"""How every operation is written: one :class:`Form` each, and the attributes that an operation's head spells.

A *head* is what stands between an operation's name and its types; its *skeleton* has every value replaced by ``%``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from . import ir
from .errors import Unsupported
from .literals import literal
from .type_text import ints, parse_type

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
    "permutation": ints,
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
    return literal(value, elem)


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
def match_skeleton(name: str, skeleton: str) -> tuple[Mapping[str, Any], int | None]:
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
