"""Reads the disassembler's text (``tileirdisasm -g``, version 13.4) into :mod:`.ir`.

The text has one operation a line.  A line is split into results, name, *head* (operands and attributes), types and
location; the head with every value replaced by ``%`` is its *skeleton*.  A kernel of a thousand lines has a few dozen
different skeletons, so matching a skeleton against the operation's form (:mod:`.forms`) is memoised: parsing is cheap.

Whatever the tables do not know, an operation, an attribute, a type, raises :class:`Unsupported` with the operation's
name and its Python line: nothing is ever skipped.  Text that breaks its own rules raises :class:`InvalidTileIR`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import ir
from .errors import InvalidTileIR, TileIRError, Unsupported
from .forms import FORMS, REGION_OPS, Types, match_skeleton
from .literals import literal, unescape
from .locations import parse_location
from .type_text import parse_type, parse_types

__all__ = ["InvalidTileIR", "TileIRError", "Unsupported", "parse"]

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
        return ir.Global(name, tile, literal(value, elem))

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
        attrs = {"value": literal(value, elem)}
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
        attrs, token_at = match_skeleton(name, _VALUE.sub("%", head).strip())
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
    """The module that ``text`` spells.  Raises Unsupported and InvalidTileIR, whatever the text."""
    try:
        return _Parser(text).module()
    except RecursionError:
        raise InvalidTileIR("regions are nested too deeply") from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, AssertionError) as error:
        if isinstance(error, TileIRError):
            raise
        # The text may come from a stranger's bytes: what the steps above take for granted need not hold.
        raise InvalidTileIR(f"malformed text: {type(error).__name__}: {error}") from error
