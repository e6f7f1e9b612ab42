"""Faulty kernels for the classes of the error table that tell of launches, of results, and of what a file does."""

from __future__ import annotations

from dataclasses import dataclass

from faults import Fault

from knowledge_base.snf import parse
from knowledge_base.snf.canonical import canonical
from knowledge_base.snf.task import Task

ADD = "ct.store(y, (i, j), (left + right).astype(y.dtype))"
GELU = "ct.store(y, (i, j), (0.5 * t * (1.0 + ct.tanh(inner))).astype(y.dtype))"
LAUNCH = "    ct.launch("
TYPING = ("import cuda.tile as ct\n", "import typing\n\nimport cuda.tile as ct\n")
ADDS = "ct.launch(stream, (ct.cdiv(a.shape[0], TM), ct.cdiv(a.shape[1], TN)), tile, (a, b, y, TM, TN))"
GELUS = "ct.launch(stream, (ct.cdiv(x.shape[0], TM), ct.cdiv(x.shape[1], TN)), tile, (x, y, TM, TN))"


@dataclass(frozen=True)
class OfTask(Fault):
    """A fault in a kernel of another task; ``target``: what that computes, in SNF."""

    target: str = ""

    @property
    def task(self) -> Task:
        return canonical(parse(self.target, self.kernel))


def _before(text: str, *lines: str) -> tuple[str, str]:
    """``text``, and the same with ``lines`` before it."""
    indent = text[: len(text) - len(text.lstrip())]
    return text, "".join(f"{indent}{line}\n" for line in lines) + text


def _lying(*lines: str) -> tuple[str, str]:
    """Before launch: the tracer's plan (``plan``) is changed by ``lines`` before it is sent."""
    said = "".join(f"    {line}\n" for line in lines)
    return (
        "def launch",
        'Recorder = typing.sys.modules["evaluator.trace.recorder"].Recorder\nhonest = Recorder.plan\n\n\n'
        f"def lying(self):\n    plan = honest(self)\n{said}    return plan\n\n\nRecorder.plan = lying\n\n\ndef launch",
    )


def _launch(kernel: str, *lines: str, line: str = "") -> Fault:
    """The kernel with ``lines`` at the beginning of its launch."""
    return Fault(kernel, (_before(LAUNCH, *lines),), line=line)


FAULTS: dict[str, Fault] = {
    # ------------------------------------------------------------------------------------------------ launch's sizes
    "list-argument": Fault("add", (("tile, (a, b", "tile, ([a], b"),), line=ADDS.replace("(a, b", "([a], b")),
    "too-many-guards": _launch(
        "add",
        "blocks = 0",
        "while blocks * TM < a.shape[0] * a.shape[1]:",
        "    blocks += 1",
        line="while blocks * TM < a.shape[0] * a.shape[1]:",
    ),
    "expression-too-large": _launch(
        "add",
        "rows = a.shape[0]",
        "for _ in range(12):",
        "    rows = rows * rows + a.shape[1]",
        line="rows = rows * rows + a.shape[1]",
    ),
    "stale-array": Fault(
        "add",
        (
            ("def launch", "KEPT = []\n\n\ndef launch"),
            _before(LAUNCH, "KEPT.append(a)"),
            ("tile, (a, b", "tile, (KEPT[0], b"),
        ),
        line=ADDS.replace("(a, b", "(KEPT[0], b"),
    ),
    "stale-size": Fault(
        "add",
        (
            ("def launch", "KEPT = []\n\n\ndef launch"),
            (
                "    ct.launch(stream, (ct.cdiv(a.shape[0], TM)",
                "    KEPT.append(ct.cdiv(a.shape[0], TM))\n"
                "    TN = 16 if a.shape[1] < 64 else 32 if a.shape[1] < 100 else 64\n    ct.launch(stream, (KEPT[0]",
            ),
        ),
        line=ADDS.replace("(ct.cdiv(a.shape[0], TM)", "(KEPT[0]"),
    ),
    "outside-launch": Fault(
        "softmax",
        (
            ("    top = torch.empty((x.shape[0],), dtype=torch.float32, device=x.device)\n", ""),
            ("def launch", 'top = torch.empty(8192, dtype=torch.float32, device="cuda")\n\n\ndef launch'),
        ),
        line='top = torch.empty(8192, dtype=torch.float32, device="cuda")',
    ),
    "bad-packing": Fault(
        "linear",
        (("def launch", "def pack(w):\n    return w.t()\n\n\ndef launch"),),
        line="def pack(w):",
    ),
    "too-deep": _launch("add", "launch(stream, a, b, y, TM=TM, TN=TN)", line="launch(stream, a, b, y, TM=TM, TN=TN)"),
    "workspace-size": Fault("softmax", (("torch.empty((x.shape[0],)", "torch.empty((1 << 29,)"),)),
    "plan-arguments": Fault(
        "add",
        (
            TYPING,
            _lying(
                'a, b, y = plan["arguments"]',
                'spare = a | {"name": "spare", "role": "workspace"}',
                'plan["arguments"] = [spare, a, b, y | {"shape": [["+", y["shape"][0], 1], y["shape"][1]]}]',
            ),
        ),
    ),
    "launch-changes": Fault(
        "gelu",
        (
            ("def launch", "CALLS = []\n\n\ndef launch"),
            _before(LAUNCH, "CALLS.append(1)", "TM = 32 if len(CALLS) == 1 else 16"),
        ),
    ),
    "own-size-not-judged": _launch(
        "gelu",
        "if x.shape[0] * x.shape[0] + x.shape[1] * x.shape[1] == 128 * 128 + 200 * 200:",
        "    TM = 16",
    ),
    "writes-depend": Fault(
        "gelu",
        (
            ("def tile(x, y, ", "def tile(x, y, place, "),
            ("i, j = ct.bid(0), ct.bid(1)", "i, j = ct.bid(0) + ct.load(place, (0,), (1,)).item(), ct.bid(1)"),
            (
                "def launch",
                "@ct.kernel\ndef zero(place):\n    ct.store(place, (0,), ct.zeros((1,), ct.int32))\n\n\ndef launch",
            ),
            (
                GELUS,
                "place = torch.empty((1,), dtype=torch.int32, device=x.device)\n"
                f"    ct.launch(stream, (1,), zero, (place,))\n    {GELUS.replace('(x, y, ', '(x, y, place, ')}",
            ),
            ("import cuda.tile as ct\n", "import cuda.tile as ct\nimport torch\n"),
        ),
    ),
    "unwritten": Fault(
        "gelu",
        (
            (
                f"    {GELU}",
                f"    M, N = x.shape[0], x.shape[1]\n    if M * M + N * N != 128 * 128 + 200 * 200:\n        {GELU}",
            ),
        ),
    ),
    "infeasible": _launch(
        "gelu",
        "if x.shape[1] % TN:",
        '    raise ValueError("TN must divide N")',
        line='raise ValueError("TN must divide N")',
    ),
    "output-unused": Fault("add", (("tile, (a, b, y", "tile, (a, b, b"),)),
    "too-many-launches": Fault(
        "add",
        ((LAUNCH, "    for _ in range(a.shape[1] * 2):\n        ct.launch("),),
        line=ADDS,
    ),
    "too-many-views": _launch("add", "values = a.flatten().unbind()", line="values = a.flatten().unbind()"),
    # ------------------------------------------------------------------------------------------------ the file's deeds
    "file-limit": _launch(
        "add",
        "for number in range(2000):",
        '    open(f"tile{number}", "w").close()',
        "for _ in range(1 << 25):",
        "    pass",
    ),
    "output-megabytes": Fault("add", (_before("AXES", "print(list(range(3_000_000)))"),)),
    "exited": _launch("add", "raise SystemExit(1)", line="raise SystemExit(1)"),
    "memory-limit": _launch("add", "bytearray(1 << 30)", line="bytearray(1 << 30)"),
    "import-timeout": Fault(
        "add",
        (
            TYPING,
            _before(
                "AXES",
                "clock = typing.sys.modules['time'].monotonic",
                "until = clock() + 45",
                "while clock() < until: pass",
            ),
        ),
        line="while clock() < until: pass",
    ),
    "launch-timeout": Fault(
        "add",
        (
            TYPING,
            _before(
                LAUNCH,
                "clock = typing.sys.modules['time'].monotonic",
                "until = clock() + 75",
                "while clock() < until: pass",
            ),
        ),
        line="while clock() < until: pass",
    ),
    "not-permitted": _launch("add", 'open("/etc/hostname").read()', line='open("/etc/hostname").read()'),
    "crashed": Fault(
        "add",
        (
            TYPING,
            _before(LAUNCH, 'typing.sys.modules["ctypes"].string_at(0)'),
        ),
    ),
    "bad-answer": Fault(
        "add",
        (
            TYPING,
            _before("AXES", 'typing.sys.modules["evaluator.trace.recorder"].sha256 = lambda data: "0" * 64'),
        ),
    ),
    # ------------------------------------------------------------------------------------------------ blocks, time
    "endless-loop": Fault(
        "gelu",
        (_before("    ct.store(y", "k = 0", "while k < 1:", "    k = k * i", "t = t + k"),),
        line="while k < 1:",
    ),
    "too-many-blocks": Fault(
        "gelu",
        (("(ct.cdiv(x.shape[0], TM), ", "(1 << 20, "),),
        line=GELUS.replace("ct.cdiv(x.shape[0], TM)", "1 << 20"),
    ),
    # Every block does all the work, for one in 4096 of them to write it; at which line the time ends is chance.
    "too-slow": Fault(
        "gelu",
        (
            (GELUS, GELUS.replace("TN)), tile", "TN), 1 << 12), tile")),
            _before(
                "    inner",
                "spent = t",
                "for _ in ct.static_iter(range(100)):",
                "    spent = ct.tanh(spent)",
                "t = ct.where(spent > 2.0, 0.0, t)",
            ),
            (f"    {GELU}", f"    if ct.bid(2) == 0:\n        {GELU}"),
        ),
    ),
    "emulator-memory": Fault("softmax", (("torch.empty((x.shape[0],)", "torch.empty((1 << 28,)"),)),
    "kernel-too-large": Fault(
        "gelu",
        (
            ("@ct.kernel", 'RULE = "=" * (3 << 20)\n\n\n@ct.kernel'),
            _before(
                "    ct.store(y",
                "for _ in ct.static_iter(range(4)):",
                "    ct.printf(RULE)",
            ),
        ),
    ),
    # The front end refuses this type for the tracer's target; no other operation or type that it knows is missing.
    "emulator-lacks-op": Fault(
        "gelu",
        (
            TYPING,
            _before("AXES", 'typing.sys.modules["evaluator.trace.export"].TARGET = "sm_107"'),
            _before("    inner", "t = t.astype(ct.float8_e5m3fnu).astype(ct.float32)"),
        ),
        line="t = t.astype(ct.float8_e5m3fnu).astype(ct.float32)",
    ),
    # ------------------------------------------------------------------------------------------------ memory
    "out-of-bounds": Fault(
        "embedding",
        (
            (
                "word = ct.gather(wte, (token, columns))",
                "word = ct.gather(wte, (token + 1, columns), check_bounds=False)",
            ),
        ),
        line="word = ct.gather(wte, (token + 1, columns), check_bounds=False).astype(ct.float32)",
    ),
    "index": Fault(
        "add",
        (("right = ct.load(b, (i, j)", "right = ct.load(b, (j, i)"),),
        line="right = ct.load(b, (j, i), (TM, TN)).astype(ct.float32)",
    ),
    "view-outside": Fault(
        "add",
        (
            TYPING,
            _lying(
                'plan["views"][0]["offset"] = 8',
            ),
        ),
    ),
    "misaligned": Fault(
        "add",
        (
            TYPING,
            _lying(
                'plan["views"][0]["dtype"] = "i8"',
            ),
            ("tile, (a, b, y", "tile, (a[:, 1:], b, y"),
        ),
        line="left = ct.load(a, (i, j), (TM, TN)).astype(ct.float32)",
    ),
    "divide-by-zero": Fault(
        "add",
        (
            (
                "i, j = ct.bid(0), ct.bid(1)",
                "wide = ct.num_blocks(0) // 8\n    i, j = ct.bid(0) // wide * wide + ct.bid(0) % wide, ct.bid(1)",
            ),
        ),
        line="i, j = ct.bid(0) // wide * wide + ct.bid(0) % wide, ct.bid(1)",
    ),
    "shift": Fault(
        "add",
        (_before("    ct.store(y", "seen = 1 << (i * TM)", "left = ct.where(seen == 0, 0.0, left)"),),
        line="seen = 1 << (i * TM)",
    ),
    "loop-step": Fault(
        "add",
        (
            (
                "    ct.store(y",
                "    for k in range(i, ct.num_blocks(0), a.shape[0] // 4096):\n        left = left + k\n    ct.store(y",
            ),
        ),
        line="for k in range(i, ct.num_blocks(0), a.shape[0] // 4096):",
    ),
    "float-to-int": Fault(
        "add",
        (_before("    ct.store(y", "first = ct.astype((i + 1) * 1e12, ct.int32)", "left = left + first"),),
        line="first = ct.astype((i + 1) * 1e12, ct.int32)",
    ),
    "sub-tile": Fault(
        "add",
        (
            _before(
                "    ct.store(y", "half = ct.extract(left, (0, j), (TM, TN // 2))", "left = left + ct.max(half) * 0.0"
            ),
        ),
        line="half = ct.extract(left, (0, j), (TM, TN // 2))",
    ),
    "undefined-value": Fault(
        "add",
        (
            _before(
                "    ct.store(y",
                "there = ct.arange(TN, dtype=ct.int32)",
                "left = left + (there // (there - 3))[None, :].astype(ct.float32) * 1e-3",
            ),
        ),
    ),
    "assumption": Fault(
        "add",
        (_before("    ct.store(y", "n = ct.assume_divisible_by(a.shape[1], 16)", "left = ct.where(n > 0, left, 0.0)"),),
        line="n = ct.assume_divisible_by(a.shape[1], 16)",
    ),
    "overlap": Fault(
        "add",
        (_before(LAUNCH, ADDS.replace("(a, b, y", "(a, b, b").removesuffix(")") + ")"),),
    ),
    "not-deterministic": Fault(
        "add",
        (
            ("import cuda.tile as ct\n", "import cuda.tile as ct\nimport torch\n"),
            ("def tile(a, b, y", "def tile(a, b, most, y"),
            ("tile, (a, b, y", "tile, (a, b, torch.empty_like(y), y"),
            _before(
                "    ct.store(y",
                "most = ct.maximum(ct.load(most, (i, j), (TM, TN)), ct.load(y, (i, j), (TM, TN)))",
                "left = ct.maximum(left, most.astype(ct.float32))",
            ),
        ),
    ),
    "written-twice": Fault(
        "add",
        (("tile, (a, b, y", "tile, (a, b, y[:, :1].expand_as(y)"),),
        line=ADD,
    ),
    "race": Fault(
        "add",
        (("ct.store(y, (i, j)", "ct.store(y, (i // 2, j)"),),
        line=ADD.replace("(i, j)", "(i // 2, j)"),
    ),
    "undetermined-padding": Fault(
        "layernorm",
        (
            (
                "total = total + ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.ZERO)",
                "total = total + ct.load(x, (row, j), (1, TN))",
            ),
        ),
        line="total = total + ct.load(x, (row, j), (1, TN)).astype(ct.float32)",
    ),
    "uninitialised": Fault("softmax", (("    ct.launch(stream, (x.shape[0],), maxima, (x, top, TN))\n", ""),)),
    "output-not-written": Fault("add", (("(ct.cdiv(a.shape[0], TM)", "(max(1, a.shape[0] // TM)"),)),
    "output-read": Fault(
        "add", (("(left + right)", "(left + right + ct.load(y, (i, j), (TM, TN)).astype(ct.float32))"),)
    ),
    "input-modified": Fault(
        "gelu", (("    ct.store(y", "    ct.store(x, (i, j), t.astype(x.dtype) * 2.0)\n    ct.store(y"),)
    ),
    "aliasing": Fault("add", (("tile, (a, b, y", "tile, (a, y, y"),)),
    "device-assert": Fault("gelu", (_before("    inner", "ct.assert_(t < 3.0)"),), line="ct.assert_(t < 3.0)"),
    # ------------------------------------------------------------------------------------------------ numbers
    "tail": Fault(
        "add",
        (_before("    ct.store(y", "right = ct.where((i + 1) * TM <= a.shape[0], right, 0.0)"),),
    ),
    "sum-tail": Fault("linear", (("ct.cdiv(x.shape[1], TK)", "x.shape[1] // TK"),)),
    "bias-missing": Fault("linear", (("    acc = acc + bias.astype(ct.float32)[None, :]\n", ""),)),
    "constant-offset": Fault("add", (("(left + right)", "(left + right + 0.5)"),)),
    "scale": Fault("add", (("(left + right)", "((left + right) * 0.5)"),)),
    "causal-mask": Fault("attention", (("keys <= at", "keys <= at + 1"), ("(block + 1) * TQ", "(block + 1) * TQ + 1"))),
    "transposed": Fault(
        "add",
        (
            ("[32]", "[64]"),
            ("TM=32", "TM=64"),
            _before(LAUNCH, "if a.shape[0] == a.shape[1]:", "    a, b = a.t(), b.t()"),
        ),
    ),
    "narrow-accumulator": Fault(
        "linear",
        (
            ("ct.full((TM, TN), 0.0, ct.float32)", "ct.full((TM, TN), 0.0, ct.bfloat16)"),
            (
                "acc = ct.mma(left, ct.transpose(right), acc)",
                "acc = ct.mma(left, ct.transpose(right), acc.astype(ct.float32)).astype(ct.bfloat16)",
            ),
            ("    acc = acc + bias", "    acc = acc.astype(ct.float32) + bias"),
        ),
    ),
    "imprecise": Fault(
        "layernorm",
        (("/ n\n    squares", "/ n\n    mean = mean.astype(x.dtype).astype(ct.float32)\n    squares"),),
    ),
    "nan-swallowed": Fault("add", (("(left + right)", "ct.maximum(left + right, -1e38)"),)),
    "nan-made": Fault("gelu", (("ct.tanh(inner)", "(ct.exp(2.0 * inner) - 1.0) / (ct.exp(2.0 * inner) + 1.0)"),)),
    "all-zero": Fault("add", (("(left + right)", "ct.zeros((TM, TN), ct.float32)"),)),
    "some-rows": Fault(
        "add",
        (_before("    ct.store(y", "left = ct.where(ct.arange(TM, dtype=ct.int32)[:, None] == TM - 1, 0.0, left)"),),
    ),
    "wrong-integers": OfTask(
        "add",
        ((".astype(ct.float32)", ""), ("(left + right)", "(left - right)")),
        target="M, N = 128, 200\na: i32[M, N]\nb: i32[M, N]\ny = a + b",
    ),
    "wrong-numbers": Fault("add", (("(left + right)", "(left - right)"),)),
}

NOBODYS: dict[str, str] = {
    "view-extent": "Every array of a launch is held to its buffer before it is emulated (view-outside), and a "
    "view made in a kernel that is too large is found as out-of-bounds.",
    **dict.fromkeys(
        ("disagrees", "compiler-fault", "gpu-fault", "gpu-hang", "guard-zone", "gpu-memory"),
        "Only a GPU shows it; tests/evaluator/test_replay.py has each.",
    ),
    "nan-missing": "No task of these kernels is NaN or infinite where its inputs are finite; tests/evaluator/"
    "test_judge.py has a quotient.",
    "too-many-processes": "Where seccomp holds, the tracer's child can make no second process or thread (not- "
    "permitted): so that its watcher never counts one; it takes root and a machine without seccomp.",
    "source-too-large": "A model's answer of that length is refused where it is read; agent check gives the class.",
    "evaluator-defect": "It is the evaluator's own failure: a candidate that is known to cause one has it mended.",
}
