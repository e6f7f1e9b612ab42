"""Faulty kernels for the classes of the error table that front end, assembler, contract and tracer find."""

from faults import Fault

LOAD = "ct.load(x, (i, j), (TM, TN), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)"
STORE = "ct.store(y, (i, j), (0.5 * t * (1.0 + ct.tanh(inner))).astype(y.dtype))"
GRID = "(ct.cdiv(x.shape[0], TM), ct.cdiv(x.shape[1], TN))"
LAUNCH = f"ct.launch(stream, {GRID}, tile, (x, y, TM, TN))"
MMA = "acc = ct.mma(left, ct.transpose(right), acc)"
RIGHT = "ct.load(w, (j, k), (TN, TK), padding_mode=ct.PaddingMode.ZERO)"

FOUR = "four = t.astype(ct.float4_e2m1fn).astype(ct.float32)"
COUNT = "count = ct.cumsum(ct.full((1 << 16,), 1, ct.int32))"
THIRD = "third = ct.arange(TN, dtype=ct.uint32)[None, :] // ct.full((1, 1), 3, ct.uint32)"
UNROLLED = """\
    for outer in ct.static_iter(range(2)):
        for step in ct.static_iter(range(1000)):
            t = ct.where(i == -1 - outer - 2 * step, ct.sin(t), t)
"""
FAULTS: dict[str, Fault] = {
    # ------------------------------------------------------------------------------------------ the front end
    "tile-not-power-of-two": Fault(
        "gelu",
        (('"TN": [64]', '"TN": [48]'), ("TN=64", "TN=48")),
        line=f"t = {LOAD}",
    ),
    "index-rank": Fault("gelu", (("ct.store(y, (i, j),", "ct.store(y, (i,),"),), line=STORE.replace("(i, j)", "(i,)")),
    "tile-rank": Fault(
        "gelu",
        (("ct.load(x, (i, j), (TM, TN)", "ct.load(x, (i, j), (TN,)"),),
        line=f"t = {LOAD}".replace("TM, TN", "TN,"),
    ),
    "undefined-torch": Fault("gelu", (("ct.tanh(", "torch.tanh("),), line=STORE.replace("ct.tanh", "torch.tanh")),
    "undefined-name": Fault(
        "gelu",
        (("0.7978845608028654 *", "math.sqrt(2.0 / math.pi) *"),),
        line="inner = math.sqrt(2.0 / math.pi) * (t + 0.044715 * t * t * t)",
    ),
    "possibly-undefined": Fault("gelu", (("    inner =", "    if i < 1:\n        inner ="),), line="if i < 1:"),
    "array-used-as-tile": Fault(
        "gelu",
        (("0.044715 * t * t * t", "0.044715 * x * x * x"),),
        line="inner = 0.7978845608028654 * (t + 0.044715 * x * x * x)",
    ),
    "array-subscript": Fault("gelu", ((LOAD, "x[i * TM, j * TN]"),), line="t = x[i * TM, j * TN]"),
    "tile-subscript": Fault(
        "gelu",
        (("t * t * t)", "t[0] * t * t)"),),
        line="inner = 0.7978845608028654 * (t + 0.044715 * t[0] * t * t)",
    ),
    "shape-not-constant": Fault(
        "gelu",
        (("ct.load(x, (i, j), (TM, TN)", "ct.load(x, (i, j), (TM, x.shape[1])"),),
        line=f"t = {LOAD}".replace("(TM, TN)", "(TM, x.shape[1])"),
    ),
    "lambda-called": Fault(
        "gelu",
        (("@ct.kernel\n", "cube = lambda v: v * v * v\n\n\n@ct.kernel\n"), ("t * t * t)", "cube(t))")),
        line="inner = 0.7978845608028654 * (t + 0.044715 * cube(t))",
    ),
    "no-such-function": Fault("gelu", (("ct.tanh(", "ct.erf("),), line=STORE.replace("ct.tanh", "ct.erf")),
    "no-such-method": Fault(
        "gelu", (("ct.tanh(inner)", "inner.tanh()"),), line=STORE.replace("ct.tanh(inner)", "inner.tanh()")
    ),
    "type-depends-on-path": Fault(
        "linear",
        (
            ("acc = ct.full((TM, TN), 0.0, ct.float32)", "acc = 0.0"),
            (MMA, "acc = acc + ct.matmul(left, ct.transpose(right))"),
        ),
        line="acc = acc + ct.matmul(left, ct.transpose(right))",
    ),
    "not-broadcastable": Fault(
        "linear",
        (("bias.astype(ct.float32)[None, :]", "ct.load(b, (j,), (TK // 2,)).astype(ct.float32)"),),
        line="acc = acc + ct.load(b, (j,), (TK // 2,)).astype(ct.float32)",
    ),
    "mma-shapes": Fault(
        "linear",
        ((MMA, MMA.replace("ct.transpose(right)", "right")), ('"TK": [64]', '"TK": [32]'), ("TK=64", "TK=32")),
        line="acc = ct.mma(left, right, acc)",
    ),
    "mma-accumulator": Fault(
        "linear", (("ct.full((TM, TN), 0.0, ct.float32)", "ct.full((TM, TN), 0.0, ct.bfloat16)"),), line=MMA
    ),
    "mma-dtypes": Fault("linear", ((RIGHT, f"{RIGHT}.astype(ct.float32)"),), line=MMA),
    "unexpected-argument": Fault(
        "gelu",
        (("ct.tanh(inner)", "ct.tanh(inner, approx=True)"),),
        line=STORE.replace("(inner)", "(inner, approx=True)"),
    ),
    "missing-argument": Fault(
        "gelu",
        (("ct.load(x, (i, j), (TM, TN), ", "ct.load(x, (i, j), "),),
        line=f"t = {LOAD}".replace("(TM, TN), ", ""),
    ),
    "too-many-grid-axes": Fault(
        "gelu", (("i, j = ct.bid(0), ct.bid(1)", "i, j = ct.bid(0), ct.bid(3)"),), line="i, j = ct.bid(0), ct.bid(3)"
    ),
    "index-not-integer": Fault(
        "gelu", (("ct.load(x, (i, j)", "ct.load(x, (i / 1, j)"),), line=f"t = {LOAD}".replace("(i, j)", "(i / 1, j)")
    ),
    "axis-out-of-range": Fault(
        "softmax",
        (("ct.max(best, axis=1)", "ct.max(best, axis=2)"),),
        line="ct.store(top, (row,), ct.max(best, axis=2))",
    ),
    "reshape-count": Fault(
        "gelu",
        (("ct.tanh(inner)", "ct.tanh(inner.reshape((TN, TN)))"),),
        line=STORE.replace("(inner)", "(inner.reshape((TN, TN)))"),
    ),
    "implicit-promotion": Fault(
        "add",
        (
            ("ct.load(a, (i, j), (TM, TN)).astype(ct.float32)", "ct.load(a, (i, j), (TM, TN)).astype(ct.float16)"),
            ("ct.load(b, (i, j), (TM, TN)).astype(ct.float32)", "ct.load(b, (i, j), (TM, TN))"),
        ),
        line="ct.store(y, (i, j), (left + right).astype(y.dtype))",
    ),
    "gather-rank": Fault(
        "embedding",
        (("ct.gather(wpe, (t, columns))", "ct.gather(wpe, (columns,))"),),
        line="place = ct.gather(wpe, (columns,)).astype(ct.float32)",
    ),
    "scatter-shape": Fault(
        "embedding",
        (("(word + place).astype(y.dtype))", "(word + place)[:, None].astype(y.dtype))"),),
        line="ct.scatter(y, (b, t, columns), (word + place)[:, None].astype(y.dtype))",
    ),
    "condition-not-scalar": Fault(
        "gelu", (("    inner =", "    if t > 10.0:\n        t = t + 0.0\n    inner ="),), line="if t > 10.0:"
    ),
    "padding-mode": Fault(
        "gelu",
        (("padding_mode=ct.PaddingMode.ZERO", 'padding_mode="zero"'),),
        line=f"t = {LOAD}".replace("ct.PaddingMode.ZERO", '"zero"'),
    ),
    "dtype-not-constant": Fault(
        "gelu", ((".astype(ct.float32)", '.astype("float32")'),), line=f"t = {LOAD}".replace("ct.float32", '"float32"')
    ),
    "kernel-returns": Fault(
        "gelu",
        (
            (
                "    ct.store(y, (i, j), (0.5 * t * (1.0 + ct.tanh(inner))).astype(y.dtype))",
                "    return 0.5 * t * (1.0 + ct.tanh(inner))",
            ),
        ),
        line="return 0.5 * t * (1.0 + ct.tanh(inner))",
    ),
    "object-in-kernel": Fault(
        "gelu",
        (
            ("@ct.kernel", "COEFFICIENTS = [0.7978845608028654, 0.044715]\n\n\n@ct.kernel"),
            ("inner = 0.7978845608028654 * (t + 0.044715 *", "inner = COEFFICIENTS[0] * (t + COEFFICIENTS[1] *"),
        ),
        line="inner = COEFFICIENTS[0] * (t + COEFFICIENTS[1] * t * t * t)",
    ),
    "raise-in-kernel": Fault(
        "gelu",
        (("    inner =", '    if TM > TN:\n        raise ValueError("tall tiles")\n    inner ='),),
        line='raise ValueError("tall tiles")',
    ),
    "static-assert": Fault(
        "gelu",
        (("    inner =", '    ct.static_assert(TM >= TN, "tall tiles only")\n    inner ='),),
        line='ct.static_assert(TM >= TN, "tall tiles only")',
    ),
    "recursion": Fault(
        "gelu",
        (
            ("@ct.kernel", "def power(t, n):\n    return t * power(t, n - 1)\n\n\n@ct.kernel"),
            ("0.044715 * t * t * t", "0.044715 * power(t, 3)"),
        ),
        line="return t * power(t, n - 1)",
    ),
    "float-not-constant": Fault(
        "gelu",
        (("(t + 0.044715", "(t + float(i) * 0.0 + 0.044715"),),
        line="inner = 0.7978845608028654 * (t + float(i) * 0.0 + 0.044715 * t * t * t)",
    ),
    "constant-arithmetic": Fault(
        "gelu", (("    inner =", "    parts = TN // (TM // 64)\n    inner ="),), line="parts = TN // (TM // 64)"
    ),
    "unsupported-syntax": Fault(
        "gelu",
        (("i, j = ct.bid(0), ct.bid(1)", "i, j = [ct.bid(axis) for axis in range(2)]"),),
        line="i, j = [ct.bid(axis) for axis in range(2)]",
    ),
    "wrong-operand-types": Fault(
        "gelu",
        (("0.044715 * t * t * t", '0.044715 * t ** "3"'),),
        line='inner = 0.7978845608028654 * (t + 0.044715 * t ** "3")',
    ),
    "transpose-axes": Fault(
        "attention",
        (
            (
                "(1, 1, TS, TD), padding_mode=ct.PaddingMode.ZERO).reshape((TS, TD))\n        scores",
                "(1, 1, TS, TD), padding_mode=ct.PaddingMode.ZERO)\n        scores",
            ),
        ),
        line="scores = ct.mma(query, ct.transpose(key), ct.full((TQ, TS), 0.0, ct.float32)) * scale",
    ),
    "matmul-rank": Fault(
        "linear",
        ((MMA, f"flat = left.reshape((TM * TK,))\n        {MMA.replace('left', 'flat')}"),),
        line=MMA.replace("left", "flat"),
    ),
    "wrong-argument-type": Fault(
        "linear",
        (("ct.full((TM, TN), 0.0, ct.float32)", "ct.full((TM, TN), None, ct.float32)"),),
        line="acc = ct.full((TM, TN), None, ct.float32)",
    ),
    # ------------------------------------------------------------------------------------------ the assembler
    "tile-too-large": Fault(
        "gelu", (('"TM": [32], "TN": [64]', '"TM": [8192], "TN": [4096]'), ("TM=32, TN=64", "TM=8192, TN=4096"))
    ),
    "ir-verification": Fault(
        "gelu",
        (("    inner =", f"    {THIRD}\n    t = ct.where(third > TN, 0.0, t)\n    inner ="),),
        line=THIRD,
    ),
    "assembler-crash": Fault(
        "gelu", (("    inner =", f"    {COUNT}\n    t = ct.where(ct.max(count) < 0, 0.0, t)\n    inner ="),)
    ),
    "architecture-lacks": Fault(
        "gelu",
        (("    inner =", f"    {FOUR}\n    t = ct.where(four < 9.0, t, t + four * 0.0)\n    inner ="),),
        line=FOUR,
    ),
    # 60 s of the assembler's processor time, up to 240 s of wall time on a busy machine.
    "compile-timeout": Fault("gelu", (("    inner =", f"{UNROLLED}    inner ="),)),
    # ------------------------------------------------------------------------------------------ the contract
    "torch-compute": Fault("gelu", (("    ct.launch(", "    x = x * 2\n    ct.launch("),), line="x = x * 2"),
    "launches-nothing": Fault("gelu", ((LAUNCH, f"grid = {GRID}"),)),
    "syntax-error": Fault(
        "gelu",
        (("def launch(stream, x, y, *, TM=32, TN=64):", "def launch(stream, x, y, *, TM=32, TN=64)"),),
        line="def launch(stream, x, y, *, TM=32, TN=64)",
    ),
    "forbidden-import": Fault(
        "gelu", (("import cuda.tile as ct", "import cuda.tile as ct\nimport numpy as np"),), line="import numpy as np"
    ),
    "argument-count": Fault("gelu", (("(x, y, TM, TN))", "(x, y, TM))"),), line=LAUNCH.replace("TM, TN))", "TM))")),
    "bad-axes": Fault(
        "gelu",
        (('AXES = {"TM": [32], "TN": [64]}', 'AXES = {"TM": [32], "TN": [2**n for n in (6, 7)]}'),),
        line='AXES = {"TM": [32], "TN": [2**n for n in (6, 7)]}',
    ),
    "kernel-called": Fault("gelu", ((LAUNCH, "tile(x, y, TM, TN)"),), line="tile(x, y, TM, TN)"),
    "none-argument": Fault(
        "gelu",
        (("def tile(x, y,", "def tile(x, bias, y,"), ("(x, y, TM, TN))", "(x, None, y, TM, TN))")),
        line=LAUNCH.replace("(x, y", "(x, None, y"),
    ),
    "plan-expression": Fault(
        "gelu",
        (("    ct.launch(", "    parts = x.numel() // (x.shape[0] - 1)\n    ct.launch("),),
        line="parts = x.numel() // (x.shape[0] - 1)",
    ),
    "grid-range": Fault(
        "gelu",
        ((GRID, GRID.replace("ct.cdiv(x.shape[0], TM)", "x.shape[0] // 256")),),
        line=LAUNCH.replace("ct.cdiv(x.shape[0], TM)", "x.shape[0] // 256"),
    ),
    "grid-rank": Fault(
        "gelu",
        ((GRID, GRID.replace("ct.cdiv(x.shape[0], TM)", "x.shape[0] / TM")),),
        line=LAUNCH.replace("ct.cdiv(x.shape[0], TM)", "x.shape[0] / TM"),
    ),
    "index-overflow": Fault(
        "gelu",
        (
            ("import cuda.tile as ct", "import cuda.tile as ct\nimport torch"),
            ("    ct.launch(", "    wide = torch.empty(1 << 31, dtype=torch.uint8, device=x.device)\n    ct.launch("),
            ("(x, y, TM", "(x, wide, TM"),
        ),
        line=LAUNCH.replace("(x, y", "(x, wide"),
    ),
    "index-range": Fault(
        "gelu",
        (
            ("import cuda", "import typing\n\nimport cuda"),
            ("def tile(x, y,", "def tile(x, y, elements,"),
            ("(x, y, TM", "(x, y, 1 << 31, TM"),
            ("def launch(", 'typing.sys.modules["evaluator.trace.signature"].INT32_MAX = 1 << 40\n\n\ndef launch('),
        ),
    ),
    "scalar-overflow": Fault(
        "gelu",
        (("def tile(x, y,", "def tile(x, y, elements,"), ("(x, y, TM", "(x, y, 1 << 31, TM")),
        line=LAUNCH.replace("(x, y", "(x, y, 1 << 31"),
    ),
    "bad-view": Fault(
        "gelu",
        (
            ("import cuda.tile as ct", "import cuda.tile as ct\nimport torch"),
            ("    ct.launch(", "    bits = y.view(torch.int32)\n    ct.launch("),
        ),
        line="bits = y.view(torch.int32)",
    ),
    "bad-launch": Fault(
        "gelu",
        (("def launch(stream, x, y,", "def launch(x, y, stream,"),),
        line="def launch(x, y, stream, *, TM=32, TN=64):",
    ),
    "too-many-workspaces": Fault(
        "gelu",
        (("    ct.launch(", "    rows = [x.new_empty(TN) for row in range(x.shape[0])]\n    ct.launch("),),
        line="rows = [x.new_empty(TN) for row in range(x.shape[0])]",
    ),
    "bad-workspace": Fault(
        "gelu",
        (("    ct.launch(", "    rows = x.new_empty(x.shape[0] // 256)\n    ct.launch("),),
        line="rows = x.new_empty(x.shape[0] // 256)",
    ),
    "workspace-too-large": Fault(
        "gelu",
        (("    ct.launch(", "    pairs = x.new_empty(x.numel(), x.numel(), 16)\n    ct.launch("),),
        line="pairs = x.new_empty(x.numel(), x.numel(), 16)",
    ),
    "launch-option": Fault(
        "gelu", (("(x, y, TM, TN))", "(x, y, TM, TN), occupancy=2)"),), line=LAUNCH[:-1] + ", occupancy=2)"
    ),
    "wrong-device": Fault(
        "gelu",
        (
            ("import cuda.tile as ct", "import cuda.tile as ct\nimport torch"),
            ("    ct.launch(", '    rows = torch.empty(TM, device="cpu")\n    ct.launch('),
        ),
        line='rows = torch.empty(TM, device="cpu")',
    ),
}

# A file that forges the assembler's error line, or names an exception class "the plan", gets these too; no honest one.
NOBODYS: dict[str, str] = {
    "out-of-registers": "The pinned tileiras spills where registers run out: it compiled every tile, occupancy and "
    "num_worker_warps that was tried, or ran out of its own time or memory.",
    "out-of-shared-memory": "The pinned tileiras takes operands beyond shared memory in parts (256 x 256 x 256 of bf16 "
    "and 128 x 128 x 512 of tf32 compile), or runs out of its own time or memory first.",
    "missing-launch": "A model's answer without it is no file and is refused where it is read; "
    "agent check gives the class.",
    "kernel-arguments": "The tracer refuses such a launch first (argument-count); a plan that a file forges ends "
    "its search.",
}
