"""Kernels that are wrong in one place, each rejected with the status, class and line that say so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from faults import Fault

from evaluator.judging.judgement import judge
from evaluator.judging.oracle import Oracle
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.records import Candidate, Verdict


@dataclass(frozen=True)
class Wrong:
    """An honest kernel with some lines replaced, and what the judge must say of it."""

    kernel: str
    changes: tuple[tuple[str, str], ...]
    status: str
    error_class: str
    line: str = ""  # text of the line the verdict points at, where it can know

    def judged(self, oracle: Oracle, seed: int = 11) -> Verdict:
        fault, rtx5070 = Fault(self.kernel, self.changes), chip("rtx5070")
        trial = begin(Candidate(source=fault.source, task=fault.task.identity), fault.task, rtx5070)
        done = judge(trial, fault.task, rtx5070, oracle=oracle, seed=seed)
        assert done.verdict is not None
        return done.verdict


ROW = "ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.ZERO)"
BIAS = "    acc = acc + bias.astype(ct.float32)[None, :]\n"
WRONG = {
    "the bias is missing": Wrong("linear", ((BIAS, ""),), "wrong", "bias-missing"),
    "the bias is added twice": Wrong("linear", ((BIAS, BIAS + BIAS),), "wrong", "bias-missing"),
    "rows of the tail are skipped": Wrong(
        "linear", (("(ct.cdiv(x.shape[0], TM)", "(max(1, x.shape[0] // TM)"),), "unsafe", "output-not-written"
    ),
    "the tail of K is skipped": Wrong(
        "linear", (("ct.cdiv(x.shape[1], TK)", "x.shape[1] // TK"),), "wrong", "sum-tail"
    ),
    "the first product of each sum is skipped": Wrong(
        "linear", (("range(ct.cdiv(", "range(1, ct.cdiv("),), "wrong", ""
    ),
    "an input is written by two blocks": Wrong(
        "linear",
        (("    ct.store(y,", "    ct.store(x, (0, 0), ct.full((TM, TK), 0.0, x.dtype))\n    ct.store(y,"),),
        "unsafe",
        "input-modified",
        line="ct.store(x, (0, 0), ct.full((TM, TK), 0.0, x.dtype))",
    ),
    "sums are kept in bf16": Wrong(
        "linear",
        (
            ("ct.full((TM, TN), 0.0, ct.float32)", "ct.full((TM, TN), 0.0, ct.bfloat16)"),
            (
                "acc = ct.mma(left, ct.transpose(right), acc)",
                "acc = ct.mma(left, ct.transpose(right), acc.astype(ct.float32)).astype(ct.bfloat16)",
            ),
            ("    acc = acc + bias", "    acc = acc.astype(ct.float32) + bias"),
        ),
        "wrong",
        "narrow-accumulator",
    ),
    "padding of K is undetermined": Wrong(
        "linear",
        (
            (
                "left = ct.load(x, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)",
                "left = ct.load(x, (i, k), (TM, TK))",
            ),
            ("(TN, TK), padding_mode=ct.PaddingMode.ZERO)", "(TN, TK))"),
        ),
        "unsafe",
        "undetermined-padding",
        line="left = ct.load(x, (i, k), (TM, TK))",
    ),
    "the output tiles are transposed": Wrong(
        "linear",
        (("ct.store(y, (i, j)", "ct.store(y, (j, i)"),),
        "unsafe",
        "index",
        line="ct.store(y, (j, i), acc.astype(y.dtype))",
    ),
    "the causal mask lets the next key in": Wrong(
        "attention",
        (("keys <= at", "keys <= at + 1"), ("(block + 1) * TQ", "(block + 1) * TQ + 1")),
        "wrong",
        "causal-mask",
    ),
    "the causal mask hides the query's own key": Wrong("attention", (("keys <= at", "keys < at"),), "wrong", ""),
    "the scale is forgotten": Wrong("attention", (("1 / math.sqrt(width)", "1.0"),), "wrong", ""),
    "the old sum is not rescaled": Wrong("attention", (("total * old", "total"),), "wrong", ""),
    "padding gets into a sum": Wrong(
        "layernorm",
        (
            (
                "total = total + ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.ZERO)",
                "total = total + ct.load(x, (row, j), (1, TN))",
            ),
        ),
        "unsafe",
        "undetermined-padding",
        line="total = total + ct.load(x, (row, j), (1, TN)).astype(ct.float32)",
    ),
    "the mean is over the padded width": Wrong(
        "layernorm", (("keepdims=True) / n\n", "keepdims=True) / (ct.cdiv(n, TN) * TN)\n"),), "wrong", ""
    ),
    "the variance is the mean square less the squared mean": Wrong(
        "layernorm",
        (
            (
                f"part = {ROW}.astype(ct.float32) - mean\n        inside",
                f"part = {ROW}.astype(ct.bfloat16)\n        inside",
            ),
            ("ct.where(inside, part * part, 0.0)", "ct.where(inside, (part * part).astype(ct.float32), 0.0)"),
            ("keepdims=True) / n + 1e-5", "keepdims=True) / n - mean * mean + 1e-5"),
        ),
        "wrong",
        "",
    ),
    "eps is left out": Wrong("layernorm", ((" + 1e-5", ""),), "wrong", "nan-made"),
    "the workspace is read before anybody wrote it": Wrong(
        "softmax", (("    ct.launch(stream, (x.shape[0],), maxima, (x, top, TN))\n", ""),), "unsafe", "uninitialised"
    ),
    "the workspace is written in part": Wrong(
        "softmax", (("(x.shape[0],), maxima", "(ct.cdiv(x.shape[0], 2),), maxima"),), "unsafe", "uninitialised"
    ),
    "two blocks add to one sum without atomics": Wrong(
        "softmax",
        (
            ("row = ct.bid(0)\n    best = ct.full", "row = ct.bid(0) // 2\n    best = ct.full"),
            ("(x.shape[0],), maxima", "(2 * x.shape[0],), maxima"),
        ),
        "unsafe",
        "race",
        line="ct.store(top, (row,), ct.max(best, axis=1))",
    ),
    "a block reads what another writes": Wrong(
        "softmax",
        (
            (
                "[:, None]\n    total",
                "[:, None]\n    ct.store(top, (0,), ct.full((1,), 0.0, ct.float32))\n    total",
            ),
        ),
        "unsafe",
        "race",
    ),
    "an input is used as scratch": Wrong(
        "gelu",
        (("    ct.store(y", "    ct.store(x, (i, j), t.astype(x.dtype) * 2.0)\n    ct.store(y"),),
        "unsafe",
        "input-modified",
    ),
    "a NaN is swallowed by a maximum": Wrong(
        "add", (("(left + right)", "ct.maximum(left + right, -1e38)"),), "wrong", "nan-swallowed"
    ),
    "it is wrong above a threshold only": Wrong(
        "gelu",
        (("inner = 0.7978845608028654 *", "inner = ct.where(x.shape[0] > 100, 0.9, 0.7978845608028654) *"),),
        "wrong",
        "",
    ),
    "it is wrong in a single element": Wrong(
        "add",
        (
            (
                "    ct.store(y",
                "    row, column = ct.arange(TM, dtype=ct.int32)[:, None], ct.arange(TN, dtype=ct.int32)[None, :]\n"
                "    hit = (row == 3) & (column == 5)\n"
                "    left = ct.where(hit & (i == 0) & (j == 0), left + 0.5, left)\n    ct.store(y",
            ),
        ),
        "wrong",
        "",
    ),
    "a row is gathered from past the table": Wrong(
        "embedding",
        (
            (
                "word = ct.gather(wte, (token, columns))",
                "word = ct.gather(wte, (token + 1, columns), check_bounds=False)",
            ),
        ),
        "unsafe",
        "out-of-bounds",
        line="word = ct.gather(wte, (token + 1, columns), check_bounds=False).astype(ct.float32)",
    ),
    "a result is scattered past the output": Wrong(
        "embedding",
        (
            (
                "ct.scatter(y, (b, t, columns), (word + place).astype(y.dtype))",
                "ct.scatter(y, (b, t, columns), (word + place).astype(y.dtype), check_bounds=False)",
            ),
        ),
        "unsafe",
        "",
    ),
    "positions are off by one": Wrong("embedding", (("ct.gather(wpe, (t,", "ct.gather(wpe, (t + 1,"),), "wrong", ""),
    "an assertion fails": Wrong(
        "gelu",
        (("    inner", "    ct.assert_(t < 3.0)\n    inner"),),
        "crash",
        "device-assert",
        line="ct.assert_(t < 3.0)",
    ),
    "a size is negative": Wrong(
        "add",
        (
            ("    left", "    rows = ct.astype(a.shape[0] - 4096, ct.int64)\n    left"),
            ("ct.load(a, (i, j)", "ct.load(ct.Array.from_foreign(a.foreign_pointer, (rows, 200), (200, 1)), (i, j)"),
        ),
        "unsafe",
        "out-of-bounds",
    ),
    "a stride is negative": Wrong(
        "add",
        (
            ("    left", "    back = ct.astype(a.shape[0] - 4096, ct.int64)\n    left"),
            ("ct.load(a, (i, j)", "ct.load(ct.Array.from_foreign(a.foreign_pointer, (4096, 200), (back, 1)), (i, j)"),
        ),
        "unsafe",
        "out-of-bounds",
    ),
    "a loop never ends": Wrong(
        "gelu",
        (("    ct.store(y", "    k = 0\n    while k < 1:\n        k = k * i\n    t = t + k\n    ct.store(y"),),
        "timeout",
        "endless-loop",
    ),
    "the output is read before it is written": Wrong(
        "add",
        (
            (
                "(left + right)",
                "(left + right + ct.load(y, (i, j), (TM, TN)).astype(ct.float32))",
            ),
        ),
        "unsafe",
        "output-read",
    ),
    "two arguments are one workspace": Wrong(
        "softmax",
        (("(x, top, y, TN)", "(x, top, top, y, TN)"), ("def rows(x, top, y, TN", "def rows(x, top, also, y, TN")),
        "unsafe",
        "",
    ),
    "nothing is written": Wrong("gelu", (("    ct.store(y, (i, j), ", "    t = ("),), "unsafe", "output-not-written"),
    "the grid has a million blocks": Wrong(
        "gelu", (("(ct.cdiv(x.shape[0], TM), ", "(1 << 20, "),), "invalid", "too-many-blocks"
    ),
    "a tile is no power of two": Wrong(
        "gelu", (('"TN": [64]', '"TN": [48]'), ("TN=64", "TN=48")), "build-error", "tile-not-power-of-two"
    ),
    "launch computes with torch": Wrong(
        "gelu", (("    ct.launch(", "    x = x * 2\n    ct.launch("),), "invalid", "torch-compute"
    ),
    "launch does another thing the second time": Wrong(
        "gelu",
        (
            ("def launch", "CALLS = []\n\n\ndef launch"),
            ("    ct.launch(", "    CALLS.append(1)\n    TM = 32 if len(CALLS) == 1 else 16\n    ct.launch("),
        ),
        "invalid",
        "launch-changes",
    ),
    "launch behaves for symbolic sizes only": Wrong(
        "gelu",
        (("    ct.launch(", "    TM = 16 if type(x.shape[0]).__name__ == 'int' else 32\n    ct.launch("),),
        "invalid",
        "launch-changes",
    ),
    "launch refuses the task's own sizes": Wrong(
        "gelu",
        (("    ct.launch(", "    if x.shape[0] == 128:\n        raise ValueError('not this one')\n    ct.launch("),),
        "infeasible",
        "infeasible",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_rejected_where(name: str, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = WRONG[name]
    if wrong.status == "timeout":  # the others may take as long as a busy machine lets them
        monkeypatch.setattr("evaluator.judging.executable.LAUNCH_SECONDS", 1.5)
    verdict = wrong.judged(oracle)
    told = f"{verdict.status} {verdict.error_class}: {verdict.message}"
    assert verdict.status == wrong.status, told
    if wrong.error_class:
        assert verdict.error_class == wrong.error_class, told
    if wrong.line:
        assert verdict.source == wrong.line, told
    assert verdict.message
    assert verdict.hint, told
