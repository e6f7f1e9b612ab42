"""``agent check`` and ``agent emulate``: one candidate file, looked at once, the answer printed and recorded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.console import console, emit, pairs, table, us
from evaluator.compile import cores, transfers
from evaluator.confinement import containment
from evaluator.judging import (
    ELEMENTS,
    LARGEST_FACTOR,
    RMS_FACTOR,
    Errors,
    Failure,
    JudgeProcess,
    Rejected,
    finished,
    summary,
)
from evaluator.plans import Plans
from evaluator.replay import AnyRunner, Runner, confirmed
from evaluator.timing import Measured, timed
from evaluator.trace import Request, read_axes, trace
from evaluator.trial import begin
from knowledge_base.content import readable
from knowledge_base.errors import EXIT_DONE, EXIT_REJECTED, EnvironmentLacks, UserError, nearest
from knowledge_base.records import Candidate, CompileEvidence, Measurement, Trial, Verdict
from knowledge_base.snf import task_named
from knowledge_base.snf.task import Task

from .hardware import chip_for, device_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

MAX_FILE_BYTES = 1 << 20


def read_source(file: str) -> str:
    """The text of a candidate file.  Raises UserError where it can't be read."""
    path = Path(file)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{file} has more than {MAX_FILE_BYTES >> 10} KiB", "A candidate is one short Python file.")
        return path.read_text(encoding="utf-8-sig")  # Python takes a byte order mark, too
    except FileNotFoundError:
        beside = [str(p) for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        near = nearest(str(path), beside)
        raise UserError(f"no file {file}", f"Nearest: {', '.join(near)}." if near else "Check the path.") from None
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text", "A candidate is a Python source file.") from None
    except OSError as error:
        raise UserError(f"can't read {file}: {error.strerror}", "Check the path and its permissions.") from None


def check_axes(source: str, axes: Mapping[str, Any]) -> None:
    """Raises UserError for an axis that the file does not have.  A file that breaks the contract is the judge's."""
    known = read_axes(source)
    if not isinstance(known, dict):
        return
    for name in axes:
        if name not in known:
            near = nearest(name, list(known)) or list(known)
            says = f"It has {', '.join(near)}." if near else "It has no AXES."
            raise UserError(f"--axes: the file has no axis {name!r}", says)


def check(
    file: str,
    task_name: str,
    shape: Mapping[str, int],
    axes: Mapping[str, Any],
    gpu: str | None,
    device: str,
    seed: int | None,
    db: str | None,
    as_json: bool,
) -> int:
    """Judges the file as a kernel for the task; exit 0 if correct, 1 if rejected."""
    chip = chip_for(gpu)
    where = device_for(device, chip)
    source = read_source(file)
    task = task_named(task_name, dict(shape))
    check_axes(source, axes)
    candidate = Candidate(source=source, task=task.identity, proposer="manual", note=readable(Path(file).name))
    plans = Plans()
    err = console(error=True)
    with err.status("judging …") if err.is_terminal else _nothing() as status:

        def progress(stage: str, share: float) -> None:
            if status is not None:
                status.update(f"{stage} {100 * share:.0f}%")

        with JudgeProcess() as judges:
            begun = begin(candidate, task, chip, axes)
            with Runner() if where == "cuda" else _nothing() as runner:  # it starts while the judge works
                trial = judges.judge(begun, task, chip, plans=plans, seed=seed, jobs=cores(), progress=progress)
                if runner is not None:
                    progress("on the GPU", 0.0)
                    trial = confirmed(trial, task, chip, plans, runner, judges, seed)
                if trial.correct:
                    trial = timed(trial, task, plans)  # so that a run starts from this file
                if trial.correct and runner is not None:
                    trial = _measured(trial, task, plans, runner)
    verdict, time = trial.verdict, trial.time
    assert verdict is not None
    noted = note_of(task, [trial], db, plans.artifacts(trial))
    document = {"task": task.name, **trial.document(plans.of(trial)), "recorded": noted == ""}
    if as_json:
        emit(document)
    else:
        print_verdict(err, verdict, (*trial.evidence, *trial.evidence_elsewhere), trial.candidate.source)
        judged = f"judged at {len(trial.judged)} sizes, {len(trial.plans)} plan{'s' if len(trial.plans) != 1 else ''}"
        if time is not None:
            once = f", packing once {us(time.packing_us, time.kind)} µs" if time.packing_us is not None else ""
            err.print(f"{us(time.us, time.kind)} µs ({_kind(time)}), floor {us(time.floor_us)} µs on {chip.name}{once}")
        held = f", contained: {verdict.contained.value}" if verdict.contained else ""
        held += f", on the emulator and on {chip.product}" if where == "cuda" else ""
        err.print(f"{judged}, seed {trial.seed}, {trial.seconds:.1f} s{held}", style="dim")
    if noted:
        print(noted, file=sys.stderr)
    return EXIT_DONE if verdict.correct else EXIT_REJECTED


def emulate(
    file: str,
    task_name: str,
    shape: Mapping[str, int],
    axes: Mapping[str, Any],
    gpu: str | None,
    seed: int,
    as_json: bool,
) -> int:
    """Runs the file once at the task's sizes from its Tile IR.

    Exit 0 if that gave results within the judge's limits; 1 if it was stopped, found unsafe, or its results are wrong.
    """
    chip = chip_for(gpu)
    source = read_source(file)
    task = task_named(task_name, dict(shape))
    check_axes(source, axes)
    document: dict[str, Any] = {"task": task.name, "shape": task.sizes, "configuration": dict(axes) or "default"}
    with JudgeProcess() as judges:
        if not containment().landlock:  # the candidate could write files that the process has yet to read
            judges.wait()
        (traced,) = trace(source, task, [Request(task.sizes, dict(axes), "sample")], chip)
        if isinstance(traced, Verdict):
            return _stopped(traced, source, document, as_json)
        made = judges.emulate(task, traced, chip, seed)
    if isinstance(made, Verdict):
        return _stopped(made, source, document, as_json)
    of_outputs, seconds = made
    figures: dict[str, dict[str, Any]] = {}
    for output, errors in of_outputs.items():
        figures[output] = {"failure": errors.kind} if isinstance(errors, Failure) else summary(errors)
        figures[output] |= dict(zip(("wrong", "remark"), _beyond(errors), strict=True))
    code = EXIT_REJECTED if any(figure["wrong"] for figure in figures.values()) else EXIT_DONE
    document |= {"outputs": figures, "seconds": round(seconds, 3), "launches": len(traced.plan.launches)}
    if as_json:
        emit(document)
        return code
    err = console(error=True)
    shown = table(
        [("output", "left", 12), ("elements", "right", 10), ("RMS error", "right", 12), ("÷ PyTorch's", "right", 11)]
    )
    for name, figure in figures.items():
        shown.add_row(name, *(_number(figure.get(key)) for key in ("elements", "rms")), _ratio(figure.get("rms_ratio")))
    err.print(shown)
    for name, figure in figures.items():
        if figure["remark"]:
            err.print(f"{name} is {figure['remark']}", markup=False, style="red" if figure["wrong"] else "yellow")
    err.print(f"{pairs(task.sizes)}, {document['launches']} launches, run twice in {seconds:.1f} s", style="dim")
    return code


def _beyond(errors: Errors | Failure) -> tuple[bool, str]:
    """(whether the judge would reject one output for it, what to say): its limits, applied to one run."""
    if isinstance(errors, Failure):
        value = f"{errors.got:.6g} at {list(errors.index)}, should be {errors.expected:.6g}"
        return True, f"{value}: agent check would call this wrong"
    if errors.acceptable:
        return False, ""
    too_large = errors.rms(errors.beyond_squares) > RMS_FACTOR * errors.rms(errors.yardstick_squares)
    limit = f"{RMS_FACTOR:.0f} ×" if too_large else f"{LARGEST_FACTOR:.0f} × PyTorch's largest error"
    if errors.doubtful and errors.count < ELEMENTS:
        return False, f"beyond {limit}, but of few elements: agent check decides on more"
    return True, f"beyond {limit}: agent check would call this wrong"


def print_verdict(
    err: Console, verdict: Verdict, evidence: Sequence[CompileEvidence] = (), candidate: str = ""
) -> None:
    """A verdict for people: status, message, line, hint, findings, errors; and the evidence of the first kernels.

    candidate: the source, in which the assembler's remarks name lines.
    """
    from rich.markup import escape

    style = "green" if verdict.correct else "red"
    err.print(f"[{style}]{verdict.status.value}[/{style}] [dim]{escape(verdict.error_class)}[/dim]")
    told = next((f for f in verdict.findings if f.message in verdict.message), None)  # the headline is a finding's
    if verdict.message:
        where = f", in block {told.block}" if told is not None and told.block else ""
        err.print(escape(verdict.message + where))
    if verdict.line is not None:
        err.print(f"line {verdict.line}: {escape(verdict.source)}")
    if verdict.hint:
        err.print(f"hint: {escape(verdict.hint)}")
    others = [f for f in verdict.findings if f is not told]
    for finding in others[:5]:
        where = f" in block {finding.block}" if finding.block else ""
        err.print(escape(f"- {finding.kind}{where}: {finding.message}"), style="yellow")
    if len(others) > 5:
        err.print(f"… and {len(others) - 5} more findings", style="yellow")
    if verdict.correct:
        made = table(
            [("inputs", "left", 12), ("output", "left", 8), ("elements", "right", 10), ("RMS ÷ PyTorch's", "right", 15)]
        )
        for distribution, outputs in verdict.numbers.items():
            for name, figure in outputs.items():
                made.add_row(distribution, name, _number(figure["elements"]), _ratio(figure["rms_ratio"]))
        err.print(made)
    for e in evidence[:4]:
        unit = f", {e.mma}" if e.mma else ""
        err.print(
            f"{e.symbol} on {e.arch}: {e.registers} registers, {e.spill_bytes} B spilled, "
            f"{e.shared_bytes} B shared{unit}",
            style="dim",
        )
        if moved := transfers(e.remarks, candidate):
            err.print(f"  {moved}", style="dim", markup=False, highlight=False)


# ---------------------------------------------------------------------------------------------------- parts


def _measured(trial: Trial, task: Task, plans: Plans, runner: AnyRunner) -> Trial:
    """The trial with its time on the card, or the verdict of a kernel that is not right while it is timed."""
    try:
        return timed(trial, task, plans, Measured(runner))
    except Rejected as rejected:
        return trial.fuller(verdict=finished(rejected.verdict, trial.candidate.source))


def note_of(task: Task, trials: Sequence[Trial], db: str | None, artifacts: Mapping[str, bytes] | None = None) -> str:
    """Stores trials of a command; where the default base can't be written, says so and the answer stands."""
    from knowledge_base.store import Store

    try:
        with Store.open(db) as store:
            store.record_tasks([task])
            store.record(trials, artifacts=artifacts)
    except EnvironmentLacks as error:
        if db is not None:
            raise
        return f"not recorded: {error.what}"
    return ""


def _stopped(verdict: Verdict, source: str, document: dict[str, Any], as_json: bool) -> int:
    verdict = finished(verdict, source)  # the hint, and the text of its line
    if as_json:
        emit(document | {"verdict": verdict.model_dump()})
    else:
        print_verdict(console(error=True), verdict)
    return EXIT_REJECTED


def _kind(time: Measurement) -> str:
    """What a time is, with the interval of a measured one."""
    if time.kind == "modelled":
        return time.kind
    status = "" if time.status == "stable" else f", {time.status}"
    low, high = time.interval or (time.us, time.us)
    return f"measured, 95% {us(low)} to {us(high)}{status}"


def _ratio(value: Any) -> str:
    return "exact" if value is None else f"{value:.3f}"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


class _nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Sequence[object]) -> None:
        return None
