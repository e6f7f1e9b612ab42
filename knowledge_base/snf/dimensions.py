"""Dimensions of an SNF text: samples, derived dimensions, and divisions made exact.

``C // H`` must be exact to be a head width, and no algebra can know that it is.  So the dimension is rewritten: with
``C`` = H·D_h and ``D_h`` free, every width that was C prints as ``H*D_h`` and ``C // H`` is just ``D_h``.  The reader
of the text notices the need half-way, records it here, and starts again (``Restart``); the sample of ``D_h`` is C's
divided by H's, which must be a whole number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels_generated.runtime.expr import Expr, ExprError, build, evaluate, normalise, substitute, symbols
from kernels_generated.runtime.expr import show as show_size

from .op_table import divide

MAX_SAMPLE = 1 << 40  # a dimension's greatest sample: a tensor of more bytes than any memory
MAX_TERMS = 256  # nodes of one size expression


class Restart(Exception):
    """Reading must begin again: a dimension was rewritten or fixed."""


class SizeError(ValueError):
    """A dimension or an arithmetic on sizes that makes no sense; the parser adds the place."""

    def __init__(self, reason: str, mend: str = "") -> None:
        super().__init__(reason)
        self.mend = mend


@dataclass(frozen=True)
class Rewrite:
    """``dim`` = ``by`` * ``rest``, where ``rest`` is a new free dimension."""

    by: Expr
    rest: str


@dataclass
class Dimensions:
    """What is known of dimensions while a text is read.  ``rewrites`` and ``fixed`` survive a Restart."""

    overrides: Mapping[str, int] = field(default_factory=dict)
    rewrites: dict[str, Rewrite] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    samples: dict[str, int] = field(default_factory=dict)  # of every declared dimension
    listed: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def again(self) -> Dimensions:
        """What survives a restart."""
        return Dimensions(self.overrides, self.rewrites, self.fixed)

    def declare(self, name: str, sample: int) -> Expr:
        """A free dimension with its sample (or what overrides it); returns the expression that stands for it."""
        sample = self.overrides.get(name, sample)
        if not 1 <= sample <= MAX_SAMPLE:
            raise SizeError(f"dimension {name} = {sample}: sizes are from 1 to 2^40")
        self.samples[name] = sample
        return sample if name in self.fixed else self.expand(name)

    def expand(self, name: str) -> Expr:
        if name not in self.rewrites:
            return name
        rewrite = self.rewrites[name]
        return normalise(("*", self._expanded(rewrite.by), self.expand(rewrite.rest)))

    def _expanded(self, expr: Expr) -> Expr:
        """``expr`` in free dimensions: what a whole was divided by may itself be one that was taken apart later."""
        return substitute(expr, {symbol: self.expand(symbol) for symbol in symbols(expr)})

    def sample(self, expr: Expr) -> int:
        """The value of ``expr`` at the samples.  Raises SizeError where there is none."""
        try:
            return evaluate(expr, {name: self._sample_of(name) for name in symbols(expr)})
        except ExprError as error:
            raise SizeError(f"{show_size(expr)}: {error}") from error

    def _sample_of(self, name: str) -> int:
        if name in self.samples:
            return self.samples[name]
        for whole, rewrite in self.rewrites.items():
            if rewrite.rest == name:
                return self._quotient(whole, rewrite)
        raise SizeError(f"{name} has no sample value")

    def _quotient(self, whole: str, rewrite: Rewrite) -> int:
        by = self.sample(self._expanded(rewrite.by))
        given = self.overrides.get(rewrite.rest)
        if given is not None and whole not in self.overrides:
            return given
        size = self._sample_of(whole)
        if by == 0 or size % by:
            raise SizeError(
                f"{whole} = {size} is not a multiple of {show_size(rewrite.by)} = {by}",
                f"choose sizes with {whole} % {show_size(rewrite.by)} == 0",
            )
        if given is not None and given * by != size:
            raise SizeError(f"{rewrite.rest} = {given} contradicts {whole} = {size} and {show_size(rewrite.by)} = {by}")
        return size // by

    def combine(self, op: str, a: Expr, b: Expr) -> Expr:
        """Arithmetic on sizes, bounded."""
        if op == "fdiv" and not isinstance(b, int):
            exact = divide(a, b)
            if exact is not None:
                return exact
        try:
            out = build(op, a, b)
        except ExprError as error:
            raise SizeError(str(error)) from error
        if _length(out, MAX_TERMS) > MAX_TERMS or (isinstance(out, int) and abs(out) > MAX_SAMPLE):
            raise SizeError("a size this large or long is surely a mistake", "sizes are at most 2^40")
        return out

    def divide_exactly(self, size: Expr, by: Expr, wish: str, taken: set[str]) -> Expr:
        """size / by, rewriting a dimension of ``size`` (and raising Restart) where algebra alone can't know it exact.

        wish: the new dimension's name where it must be made.  Raises SizeError where the samples do not divide.
        """
        exact = divide(size, by)
        if exact is not None:
            return exact
        whole, part = self.sample(size), self.sample(by)
        if part == 0 or whole % part:
            raise SizeError(
                f"{show_size(size)} = {whole} is not a multiple of {show_size(by)} = {part}",
                f"choose sizes with {show_size(('mod', size, by))} == 0",
            )
        for name in sorted(symbols(size) - symbols(by)):
            trial = substitute(size, {name: build("*", by, "REST")})
            if divide(trial, by) is not None and self._sample_of(name) % part == 0:
                rest = wish or (f"{name}_{by}" if isinstance(by, str | int) else f"{name}_part")
                while not wish and rest in taken:
                    rest += "_"
                self.rewrites[name] = Rewrite(by, rest)
                raise Restart
        raise SizeError(
            f"{show_size(size)} can't be divided by {show_size(by)} for every size",
            f"declare the part as a dimension of its own and write the whole as ({show_size(by)})*part",
        )

    def fix(self, expr: Expr) -> int:
        """The value of a size that the graph's structure depends on (a loop's count): its dimensions become numbers."""
        if isinstance(expr, int):
            return expr
        for name in symbols(expr):
            if name not in self.samples:
                raise SizeError(f"{show_size(expr)} can't be a count: {name} is derived")
            self.fixed.add(name)
        raise Restart

    def free(self) -> dict[str, int]:
        """The free dimensions with their samples: a rewritten one gives its place to its parts."""
        out: dict[str, int] = {}
        for name in self.samples:
            if name not in self.fixed:
                for symbol in [name] if name not in self.rewrites else self._parts(name):
                    if symbol not in self.fixed:
                        out[symbol] = self._sample_of(symbol)
        return out

    def _parts(self, name: str) -> list[str]:
        rest = self.rewrites[name].rest
        return self._parts(rest) if rest in self.rewrites else [rest]


def _length(expr: Expr, limit: int) -> int:
    if not isinstance(expr, tuple) or limit <= 0:
        return 1
    left = _length(expr[1], limit - 1)
    return 1 + left + _length(expr[2], limit - 1 - left)
