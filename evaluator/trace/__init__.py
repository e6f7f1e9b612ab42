"""Candidate file → launch plans and Tile IR bytecode.

The candidate runs in a confined child (:mod:`.child`), on arrays without data (:mod:`.dataless`), with symbolic
integers (:mod:`.symbolic`), under a stand-in for torch (:mod:`.fake_torch`).  This module is the parent's side: it
checks the text (:mod:`.contract`), starts the child, and believes nothing of the answer that it has not checked.  A
candidate's failure is a Verdict, never an exception.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from evaluator.confinement import MIB, Finished, Limits, containment, python_child
from kernels_generated.runtime.expr import ExprError, evaluate, to_json
from kernels_generated.runtime.plan import ArrayParameter, Launch, LaunchPlan, PlanError, from_data
from knowledge_base.hints import classify
from knowledge_base.records import Stage, Status, Verdict
from knowledge_base.snf.graph import Tensor
from knowledge_base.snf.signatures import arguments
from knowledge_base.snf.task import Task

from . import contract
from .launches import same_launches
from .refusal import FAILURES
from .result import KernelInfo, Request, Traced, read_kernel_info

__all__ = ["KernelInfo", "Request", "TraceLimits", "Traced", "read_axes", "same_launches", "trace"]

POLICIES = ("general", "sample", "concrete")
MAX_BYTECODE = 4 * MIB  # honest ones have a few KiB
# Packages whose __init__ the child does not run: they may import what it does not need.
BARE = ("evaluator", "evaluator.confinement", "evaluator.trace", "kernels_generated", "kernels_generated.runtime")
CHIP_FACTS = (
    "product", "arch", "sm_count", "memory_bytes", "l2_bytes", "shared_per_sm", "shared_per_block", "registers_per_sm",
)  # fmt: skip


class ChipFacts(Protocol):
    """What tracing needs of a chip (knowledge_base.chips.Chip has it)."""

    @property
    def arch(self) -> str: ...

    @property
    def sm_count(self) -> int: ...


@dataclass(frozen=True)
class TraceLimits:
    """import_s: for importing the file; trace_s: for all requests together; memory: of the child's address space."""

    import_s: float = 30.0
    trace_s: float = 60.0
    memory_bytes: int = 1024 * MIB
    file_bytes: int = 16 * MIB
    processes: int = 1
    output_bytes: int = 16 * MIB  # an answer is read as JSON, which takes some twenty times as much memory

    def child(self) -> Limits:
        whole = self.import_s + self.trace_s + 2.0  # the child's own timers come first: they know the line
        return Limits(whole, int(whole) + 1, self.memory_bytes, self.file_bytes, self.processes, self.output_bytes)


def read_axes(source: str) -> dict[str, list[Any]] | Verdict:
    """The file's AXES, name → values with the default first; a Verdict where the file breaks the contract."""
    found = contract.read(source)
    return _breach(found, source) if isinstance(found, contract.Breach) else dict(found.axes)


def trace(
    source: str,
    task: Task,
    requests: Sequence[Request],
    chip: ChipFacts,
    *,
    limits: TraceLimits | None = None,
) -> list[Traced | Verdict]:
    """One answer per request, in order; the candidate is imported once, in one child.

    Raises KeyError or ValueError for a request that is the caller's mistake (sizes that are not the task's dimensions,
    an unknown policy); everything that the candidate does wrong is a Verdict.
    """
    limits = limits or TraceLimits()
    inputs, outputs = list(task.inputs), list(task.outputs)
    for request in requests:
        if set(request.sizes) - {"num_sms"} != set(task.sizes):
            raise KeyError(f"sizes {sorted(request.sizes)}, the task has {sorted(task.sizes)}")
        if request.policy not in POLICIES:
            raise ValueError(f"policy {request.policy!r}: one of {', '.join(POLICIES)}")
    given = arguments(task)
    weights = tuple(t.name for t in inputs if t.role == "weight")
    found = contract.read(source, contract.Takes(given[: len(inputs)], given[len(inputs) :], weights))
    if isinstance(found, contract.Breach):
        return [_breach(found, source)] * len(requests)
    axes = [_axes(found, request, source) for request in requests]
    ready = [i for i, a in enumerate(axes) if isinstance(a, dict)]
    if not ready:
        return [a for a in axes if not isinstance(a, dict)]
    nonce = secrets.token_hex(16)
    question = {
        "nonce": nonce,
        "filter": base64.b64encode(containment().candidate).decode(),
        "source": source,
        "import_s": limits.import_s,
        "trace_s": limits.trace_s,
        "task": {
            "identity": task.identity,
            "inputs": _tensors(inputs),
            "outputs": _tensors(outputs),
            "numbers": task.size_arguments,
        },
        "packing": None if found.packing is None else asdict(found.packing),
        "chip": {fact: getattr(chip, fact, None) for fact in CHIP_FACTS},
        "requests": [
            {
                "sizes": dict(requests[i].sizes),
                "axes": axes[i],
                "policy": requests[i].policy,
                "takes_num_sms": found.takes_num_sms and "num_sms" not in found.axes,
            }
            for i in ready
        ],
    }
    # What is traced to be compared runs where another order of a set's strings, say, would show.
    other = all(request.policy == "concrete" for request in requests)
    data = json.dumps(question).encode()
    finished = python_child("evaluator.trace.child", data, limits.child(), bare=BARE, other=other)
    answers = _Answers(finished, nonce, source, limits, chip.sm_count)
    results: list[Traced | Verdict] = []
    for i, axis_values in enumerate(axes):
        if isinstance(axis_values, dict):
            results.append(answers.read(ready.index(i), task, requests[i], axis_values))
        else:
            results.append(axis_values)
    return results


def _tensors(tensors: list[Tensor]) -> list[dict[str, Any]]:
    return [{"name": t.name, "dtype": t.dtype, "role": t.role, "shape": [to_json(s) for s in t.shape]} for t in tensors]


def _axes(found: contract.Contract, request: Request, source: str) -> dict[str, Any] | Verdict:
    unknown = sorted(set(request.axes) - set(found.axes))
    if unknown:
        known = ", ".join(found.axes) or "none"
        return _breach(
            contract.Breach("bad-axes", f"no axis {unknown[0]}: this file has {known}", found.launch_line), source
        )
    return {name: request.axes.get(name, choices[0]) for name, choices in found.axes.items()}


# -------------------------------------------------------------------------------------------------- the child's answer


class _Answers:
    """The lines of one child, and for requests without a line the Verdict that says why."""

    def __init__(self, finished: Finished, nonce: str, source: str, limits: TraceLimits, num_sms: int) -> None:
        self._source = source
        self._num_sms = num_sms
        self._requests: dict[int, dict[str, Any]] = {}
        self._kernels: dict[str, bytes] = {}
        marks: dict[str, dict[str, Any]] = {}
        prefix = nonce.encode() + b" "
        for line in finished.stdout.split(b"\n"):
            message = _json(line[len(prefix) :]) if line.startswith(prefix) else None
            if isinstance(message, dict):
                if isinstance(message.get("request"), int):
                    self._requests.setdefault(message["request"], message)
                for mark in {"ready", "imported", "late", "done"} & set(message):
                    marks.setdefault(mark, message)
        if "ready" not in marks and finished.breach == "" and finished.returncode != 0:
            # The child died before it looked at the candidate: our installation, not the file.
            raise RuntimeError(f"the tracing child did not start: {_text(finished.stderr_tail)}")
        self._missing = self._why(finished, marks, limits)

    def read(self, number: int, task: Task, request: Request, axes: dict[str, Any]) -> Traced | Verdict:
        message = self._requests.get(number)
        if message is None:
            return self._missing
        if "failure" in message:
            return self._told(message["failure"])
        try:
            return self._traced(message, task, request, axes)
        except (PlanError, ExprError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            # Every one of these comes from data of the wrong form: the candidate wrote on the pipe.
            return self._verdict("invalid", "trace", "bad-answer", f"the child's answer is not a plan: {error}"[:500])

    def _traced(self, message: dict[str, Any], task: Task, request: Request, axes: dict[str, Any]) -> Traced:
        plan = from_data(message["plan"])
        _check_plan(plan, task, {"num_sms": self._num_sms, **request.sizes})
        for digest, text in dict(message["kernels"]).items():
            data = base64.b64decode(text, validate=True)
            if len(data) > MAX_BYTECODE or hashlib.sha256(data).hexdigest() != digest:
                raise ValueError("a bytecode that is not what its hash says")
            self._kernels[digest] = data
        names = {h: read_kernel_info(message["names"][h]) for h in plan.kernels}
        _check_names(plan, names)
        kernels = {} if request.policy == "concrete" else {h: self._kernels[h] for h in plan.kernels}
        facts = tuple(str(f)[:64] for f in message["chip_facts"])[:64]
        seconds = float(message["seconds"])
        return Traced(plan, kernels, names, axes, dict(request.sizes), self._num_sms, facts, seconds)

    def _told(self, told: Any) -> Verdict:
        """The child's word that the candidate failed: one of FAILURES while it was imported or launched, no other."""
        try:
            kind, stage, message = str(told["kind"]), str(told["stage"]), str(told["message"])
            line = told["line"] if type(told["line"]) is int else None
            if stage not in ("import", "trace"):
                raise ValueError(stage)
            return self._verdict(FAILURES[kind], stage, kind, message, line)
        except (KeyError, TypeError, ValueError):
            return self._verdict("invalid", "trace", "bad-answer", "the child's answer is not a failure that there is")

    def _why(self, finished: Finished, marks: Mapping[str, Any], limits: TraceLimits) -> Verdict:
        """Why there is no answer."""
        stage = "trace" if "imported" in marks else "import"
        what, where = ("launch", "launch") if stage == "trace" else ("import", "importing the file")
        late = marks.get("late")
        if late is not None:
            line = late.get("line") if type(late.get("line")) is int else None
            return self._verdict("timeout", stage, f"{what}-timeout", str(late.get("message"))[:200], line)
        told = {
            "time": ("timeout", f"{what}-timeout", f"{where} did not end in time"),
            "output": ("invalid", "output-megabytes", f"{where} printed more than {limits.output_bytes} bytes"),
            "processes": ("invalid", "too-many-processes", f"{where} started processes or threads"),
            "memory": ("crash", "memory-limit", f"{where} took more than {limits.memory_bytes // MIB} MiB"),
            "file": ("invalid", "file-limit", f"{where} wrote too many files, or one of {limits.file_bytes} bytes"),
            "signal": ("crash", "crashed", f"{where} ended the process by signal {-finished.returncode}"),
            "": ("invalid", "exited", f"{where} ended the process with exit code {finished.returncode}"),
        }.get(finished.breach, ("crash", "crashed", f"{where} ended the process"))
        return self._verdict(told[0], stage, told[1], told[2])

    def _verdict(self, status: str, stage: str, error_class: str, message: str, line: int | None = None) -> Verdict:
        return _verdict(self._source, status, stage, error_class, message, line)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _text(data: bytes) -> str:
    return data.decode(errors="replace").strip()[-2000:]


def _check_plan(plan: LaunchPlan, task: Task, dims: Mapping[str, int]) -> None:
    """The plan's arguments are the task's, and it applies at the sizes it was traced at.  ValueError if not."""
    expected = [(t.name, t.role, t.dtype) for t in (*task.inputs, *task.outputs)]
    given = [(a.name, a.role, a.dtype) for a in plan.arguments if a.role not in ("workspace", "packed")]
    if plan.task != task.identity or given != expected:
        raise ValueError("its arguments are not the task's")
    for argument, tensor in zip(plan.arguments, (*task.inputs, *task.outputs), strict=False):
        if [evaluate(s, dims) for s in argument.shape] != [evaluate(s, dims) for s in tensor.shape]:
            raise ValueError(f"its argument {argument.name} has another shape than the task's")
    if set(plan.dims) != set(dims):
        raise ValueError("its dimensions are not the task's")
    if not any(isinstance(step, Launch) for step in plan.steps[plan.packing :]):
        raise ValueError("it launches nothing")
    guard = plan.failing_guard(dims)
    if guard is not None:
        raise ValueError(f"it does not apply at its own sizes: {guard}")


def _check_names(plan: LaunchPlan, names: Mapping[str, KernelInfo]) -> None:
    """Every launch passes as many arrays, of the ranks, as its kernel was compiled for.  ValueError if not."""
    for launch in plan.launches:
        ranks = [len(plan.views[p.view].shape) for p in launch.parameters if isinstance(p, ArrayParameter)]
        if ranks != [a.rank for a in names[launch.kernel].arrays]:
            raise ValueError(f"a launch of {launch.symbol} with other arrays than it was compiled for")


def _breach(found: contract.Breach, source: str) -> Verdict:
    return _verdict(source, "invalid", "static", found.error_class, found.message, found.line)


def _verdict(source: str, status: str, stage: str, error_class: str, message: str, line: int | None) -> Verdict:
    error_class, hint = classify(status, message, error_class)
    lines = source.splitlines()
    text = lines[line - 1].strip()[:200] if line is not None and 0 < line <= len(lines) else ""
    return Verdict(
        status=Status(status),
        stage=Stage(stage),
        error_class=error_class,
        message=message,
        hint=hint,
        line=line,
        source=text,
        contained=containment().level if stage != "static" else None,
    )
