"""The error table answers every message it claims to know, and only with what it says."""

from __future__ import annotations

import string

import pytest

from knowledge_base.hints import classify, table
from knowledge_base.records import Status


def test_the_table_has_at_least_thirty_classes_and_no_name_twice() -> None:
    names = [row.name for row in table()]
    assert len(names) >= 30
    assert len(set(names)) == len(names)
    assert all(set(row.statuses) <= {s.value for s in Status} for row in table())


@pytest.mark.parametrize("row", table(), ids=lambda row: row.name)
def test_each_class_recognises_its_own_example_before_any_other_does(row) -> None:
    for status in row.statuses[:1]:
        assert classify(status, row.example)[0] == row.name
    assert all(isinstance(field, str) for _, field, _, _ in string.Formatter().parse(row.hint) if field is not None)


@pytest.mark.parametrize("row", table(), ids=lambda row: row.name)
def test_a_class_named_by_its_finder_gets_a_whole_hint_for_any_message(row) -> None:
    error_class, hint = classify(row.statuses[0], "some other words", row.name)
    assert error_class == row.name
    assert hint
    assert "{" not in hint.replace('{"TM"', "")


def test_the_hint_for_a_tile_of_48_says_64() -> None:
    message = 'Invalid argument "shape" of load(): Dimension #0 of shape (48, 64) is not a power of two'
    error_class, hint = classify(Status.BUILD_ERROR, message)
    assert error_class == "tile-not-power-of-two"
    assert "(48, 64)" in hint
    assert "use (64, 64) and mask" in hint


def test_a_correct_verdict_has_no_hint_and_an_unknown_failure_keeps_its_class() -> None:
    assert classify(Status.CORRECT, "") == ("", "")
    assert classify(Status.BUILD_ERROR, "never seen", "mine") == ("mine", "")
    assert classify(Status.BUILD_ERROR, "never seen") == ("", "")


KERNEL = """
import cuda.tile as ct

@ct.kernel
def kernel(x, y):
    {body}
"""

# What the front end itself says, provoked: a release that rewords its messages fails here.
PROVOKED = {
    "tile-not-power-of-two": "t = ct.load(x, (0, 0), (48, 64))",
    "index-rank": "t = ct.load(x, (ct.bid(0),), (64, 64))",
    "tile-rank": "t = ct.load(x, (ct.bid(0), 0), (64,))",
    "undefined-torch": "t = torch.zeros(3)",
    "undefined-name": "t = math.sqrt(2.0)",
    "possibly-undefined": "if ct.bid(0) > 0:\n        a = 1\n    t = a + 1",
    "array-used-as-tile": "t = x + 1.0",
    "array-subscript": "t = x[0, 0]",
    "tile-subscript": "t = ct.load(x, (0, 0), (64, 64))[0, 0]",
    "shape-not-constant": "t = ct.load(x, (0, 0), (64, x.shape[1]))",
    "no-such-function": "t = ct.sigmoid(ct.load(x, (0, 0), (64, 64)))",
    "no-such-method": "t = ct.load(x, (0, 0), (64, 64)).mean()",
    "type-depends-on-path": "a = 0\n    for i in range(9):\n        a = a + ct.full((64,), 0.0, ct.float32)",
    "not-broadcastable": "t = ct.full((64, 32), 0.0, ct.float32) + ct.full((64,), 0.0, ct.float32)",
    "mma-shapes": "a = ct.full((64, 32), 0.0, ct.bfloat16)\n    t = ct.mma(a, a, ct.full((64, 64), 0.0, ct.float32))",
    "mma-accumulator": "a = ct.full((64, 64), 0.0, ct.bfloat16)\n    t = ct.mma(a, a, a)",
    "mma-dtypes": "a = ct.full((8, 8), 0.0, ct.float32)\n    t = ct.mma(ct.full((8, 8), 0.0, ct.bfloat16), a, a)",
    "unexpected-argument": "t = ct.sum(ct.load(x, (0, 0), (64, 64)), axis=1, keep_dims=True)",
    "missing-argument": "t = ct.load(x, (0, 0))",
    "too-many-grid-axes": "t = ct.bid(3)",
    "index-not-integer": "t = ct.load(x, (0.5, 0), (64, 64))",
    "axis-out-of-range": "t = ct.sum(ct.load(x, (0, 0), (64, 64)), axis=2)",
    "reshape-count": "t = ct.reshape(ct.load(x, (0, 0), (64, 64)), (64, 32))",
    "implicit-promotion": "t = ct.full((64,), 0.0, ct.float16) + ct.full((64,), 0.0, ct.bfloat16)",
    "gather-rank": "t = ct.gather(x, (ct.arange(64, dtype=ct.int32),))",
    "scatter-shape": "ct.scatter(x, (ct.arange(64, dtype=ct.int32), 0), ct.full((32,), 0.0, ct.float32))",
    "condition-not-scalar": "t = ct.load(x, (0, 0), (64, 64))\n    if t > 0:\n        t = t + 1",
    "padding-mode": "t = ct.load(x, (0, 0), (64, 64), padding_mode='zero')",
    "dtype-not-constant": "t = ct.load(x, (0, 0), (64, 64)).astype('float16')",
    "kernel-returns": "return 1",
    "object-in-kernel": "t = kernel",
    "raise-in-kernel": "raise ValueError('x')",
    "static-assert": "ct.static_assert(False, 'no')",
    "float-not-constant": "t = float(ct.bid(0))",
    "constant-arithmetic": "t = 1 // 0",
    "unsupported-syntax": "t = [1, 2]",
    "wrong-operand-types": "t = 'a' + 1",
    "transpose-axes": "t = ct.transpose(ct.full((2, 2, 2), 0.0, ct.float32))",
    "wrong-argument-type": "t = ct.full((64,), None, ct.float32)",
}


@pytest.mark.parametrize("name", PROVOKED)
def test_the_front_ends_own_words_are_recognised(name: str) -> None:
    error_class, hint = classify(Status.BUILD_ERROR, _provoke(KERNEL.format(body=PROVOKED[name]), name))
    assert error_class == name
    assert hint
    assert "{" not in hint


def _provoke(source: str, name: str) -> str:
    """The message of cuTile's front end for a faulty kernel of ours."""
    import io
    import linecache

    import cuda.tile as ct
    from cuda.tile.compilation import ArrayConstraint, CallingConvention, KernelSignature, export_kernel

    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    module: dict[str, object] = {}
    exec(compile(source, filename, "exec"), module)
    array = ArrayConstraint(
        ct.float32,
        2,
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(None, 1),
        stride_divisible_by=1,
        shape_divisible_by=1,
        base_addr_divisible_by=16,
    )
    signature = KernelSignature([array, array], CallingConvention.cutile_python_v2(), symbol="k")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is the front end's business
        export_kernel(
            module["kernel"],
            [signature],
            io.BytesIO(),
            gpu_code="sm_120",
            output_format="tileir_bytecode",
            bytecode_version="13.4",
        )
    return str(getattr(caught.value, "message", caught.value))
