"""The loop: a target becomes tasks, each task gets a proven kernel, the target made of them is judged, all is recorded.

Tasks are worked on in order of their share of the target's modelled floor, several at once: searching waits for
assemblers and judging is done by processes (:mod:`.judges`), so threads are enough here.  What one task needs is
:mod:`.task_work`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.console import count
from agent.progress import Progress
from agent.proposers import Choice, Workplace, snf_file
from evaluator import toolchain
from evaluator.compile import cores
from evaluator.plans import Plans
from evaluator.replay import AnyRunner
from evaluator.timing import MODEL, NEXT_LAUNCH_S, Timer, floor_us
from evaluator.version import evaluator_version, packages
from knowledge_base.chips import Chip
from knowledge_base.errors import EXIT_INTERRUPTED, EnvironmentLacks, UserError
from knowledge_base.records import Kind, Measurement, Trial, in_sequence
from knowledge_base.rules import Lesson, Space, in_spaces, learn, own, shipped
from knowledge_base.snf import decompose
from knowledge_base.snf.graph import Graph
from knowledge_base.snf.task import Decomposition, Task
from knowledge_base.store import REPLAY, Store

from . import compose, report
from .assay import Assemblers, Elsewhere
from .compose import WHOLE, Composed
from .conclude import operations
from .context import RunContext, RunStopped
from .finals import finals
from .judges import Judges
from .labels import label_tasks
from .model_use import ModelUse, model_use
from .rundir import RunFolder
from .summary import RunSummary, TaskResult
from .task_work import WORTH, TaskWork

PLAN = "v2"  # fused; the naive plan is recorded beside it
PLANS = ("v1", "v2")
# That searching may take unless told, by the kind of its times: keeps a block's first run on two cores below 2 minutes,
# and lets 16 cores and a GPU try all configurations of one.
SEARCH_SECONDS: dict[Kind, float] = {"modelled": 40.0, "measured": 120.0}
NEWEST = 20_000  # measured trials of a base that a search looks at
ROUNDS, MODEL_ROUNDS = 2, 8  # of proposals for a task; a language model learns from what became of its answers
LEAST_SHARE = 0.5  # of an even part, that the smallest task may use of a model's budget
PATIENCE = 2.0  # seconds that tasks have to end in once the run is to end


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for; None: what the proposer or its model has for it.

    rounds: of proposals for each task.  seed: makes hidden inputs and judged sizes reproducible.  prices: a file with
    prices of models.  replay: what names the recording that answers in a model's stead.  record: the file that the
    run's calls are written to in the end.  cluster: the address of a Dask scheduler.
    """

    target: str
    shape: Mapping[str, int] = field(default_factory=dict)
    proposer: str = "auto"
    model: str | None = None
    rounds: int | None = None
    budget_minutes: float | None = None
    budget_tokens: int | None = None
    budget_usd: float | None = None
    prices: str | None = None
    replay: str | None = None
    record: str | None = None
    seed: int = 0
    jobs: int = 0
    cluster: str | None = None
    search_seconds: float | None = None

    def stored(self) -> dict[str, Any]:
        return asdict(self)


def run(
    run_id: str,
    options: RunOptions,
    graph: Graph,
    chip: Chip,
    choice: Choice,
    store: Store,
    folder: RunFolder,
    progress: Progress,
    timer: Timer = MODEL,
    runner: AnyRunner | None = None,
    elsewhere: Elsewhere | None = None,
) -> RunSummary:
    """Works on every task of ``graph`` and returns what was found; the run is recorded and its folder complete.

    timer: what kernels are compared by.  runner: the GPU's, where there is one: what the judge calls correct is
    confirmed there, and winners are measured again in fresh processes.  It is closed in the end.  elsewhere: other
    machines that measure, too.
    The run must have been started (or resumed) in ``store``.  On KeyboardInterrupt it is left resumable.
    """
    start = time.monotonic()
    plans = {name: decompose(graph, name) for name in PLANS}
    decomposition = plans[PLAN]
    jobs = options.jobs or cores()
    stopping = threading.Event()
    with ExitStack() as stack:
        at_once = min(jobs, len(decomposition.tasks))
        judges = stack.enter_context(Judges(at_once, runner))  # first: a process takes a second
        store.record_tasks(task for plan in plans.values() for task in plan.tasks)
        _write_plans(folder, plans, chip)
        context = _context(
            run_id, options, chip, choice, store, folder, judges, timer, runner, elsewhere, progress, stopping
        )
        context = replace(
            context, at_once=at_once, slots=threading.Semaphore(at_once),
        )  # fmt: skip
        try:
            done = {PLAN: _carried_out(context, options.target, decomposition)}
            for name, plan in plans.items():
                if name != PLAN and _promises(context, plan, done[PLAN]):
                    progress.say(f"plan {name}, which may be faster")
                    try:
                        done[name] = _carried_out(context, options.target, plan)
                    except UserError as error:  # what the usual plan has found stands
                        progress.say(f"plan {name} was given up: {error}")
                        break
            new = sum(result.effort.new for one in done.values() for result in one.results)
            taught = new > 0 and timer.kind == "measured"
            lesson = _learned(store, progress) if taught else None
        except KeyboardInterrupt:
            so_far = {"why": "interrupted", "seconds": round(time.monotonic() - start, 3)}
            store.finish_run(run_id, "interrupted", EXIT_INTERRUPTED, so_far)
            folder.log("interrupted")
            raise
    asked = model_use(store.calls(run_id), choice.model)
    chosen = _fastest(done)
    results, composed = done[chosen].results, done[chosen].composed
    summary = RunSummary(
        id=run_id,
        target=options.target,
        chip=chip.name,
        device="cpu" if runner is None else "cuda",
        proposer=choice.name,
        why=choice.why,
        status="done" if done[chosen].good else "incomplete",
        plan=chosen,
        plans={name: _plan_figures(plan, chip) | _plan_time(done.get(name)) for name, plan in plans.items()},
        tasks=_with_shares(results),
        composed=composed,
        seconds=round(time.monotonic() - start, 3),
        folder=str(folder.path),
        notes=_notes(options, timer.kind, results, composed, asked, context.left <= 0)
        + (_rule_notes(lesson) if taught else ()),
        asked=asked,
        lesson=lesson,
    )
    document = summary.document()
    folder.write("report.md", report.markdown(document, versions()))
    store.finish_run(run_id, summary.status, summary.exit_code, document)
    folder.log(f"{summary.status} in {summary.seconds} s")
    return summary


def versions() -> dict[str, str]:
    """What a run's results depend on, for its record and report."""
    import platform

    try:
        tileiras = toolchain.tool("tileiras").version  # it may have come without Python's packages
    except EnvironmentLacks:
        tileiras = "none"
    return {
        "evaluator": evaluator_version(),
        "python": platform.python_version(),
        **packages(),
        "tileiras": tileiras,
    }


# ---------------------------------------------------------------------------------------------------- parts


def _context(
    run_id: str,
    options: RunOptions,
    chip: Chip,
    choice: Choice,
    store: Store,
    folder: RunFolder,
    judges: Judges,
    timer: Timer,
    runner: AnyRunner | None,
    elsewhere: Elsewhere | None,
    progress: Progress,
    stopping: threading.Event,
) -> RunContext:
    minutes, jobs = options.budget_minutes, options.jobs or cores()
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    place = Workplace(
        run=run_id,
        store=store,
        folder=folder.path / "prompts",
        say=progress.say,
        stop=stopping.is_set,
        left=lambda: math.inf if deadline is None else deadline - time.monotonic(),
        seed=options.seed,
    )
    return RunContext(
        run=run_id,
        store=store,
        folder=folder,
        judges=judges,
        plans=Plans(store),
        proposers=choice.proposers(place),
        timer=timer,
        runner=runner,
        chip=chip,
        evaluator=evaluator_version(),
        starts_alone=choice.name == REPLAY,
        seed=options.seed,
        rounds=options.rounds or (MODEL_ROUNDS if choice.model is not None else ROUNDS),
        cores=jobs,
        assemblers=Assemblers(jobs),
        elsewhere=elsewhere,
        search_seconds=_search_seconds(options, timer.kind),
        progress=progress,
        spaces=measured_spaces(store) if timer.kind == "measured" and choice.name != REPLAY else (),
        deadline=deadline,
        stopping=stopping,
    )


def measured_spaces(store: Store | None, foreign: bool = True) -> tuple[Space, ...]:
    """What was measured of any work: the landscapes that ship, and the newest trials of the base.

    ``foreign``: of other bases, too.  They say what to look at first; that such a time is false costs a look.
    """
    trials = own(store.database, NEWEST, foreign) if store is not None else ()
    return tuple(in_spaces([*shipped(), *trials]))


@dataclass(frozen=True)
class _Done:
    """A fusion plan carried out: what became of its tasks, and of the target made of them."""

    results: list[TaskResult]
    composed: Trial | None

    @property
    def good(self) -> bool:
        return all(r.correct for r in self.results) and self.composed is not None and self.composed.correct

    @property
    def time(self) -> Measurement | None:
        """Of the target as one graph, where it was measured so and is correct."""
        time = self.composed.timed("measured") if self.composed is not None and self.good else None
        return time if time is not None and time.interval is not None else None


def _carried_out(context: RunContext, target: str, decomposition: Decomposition) -> _Done:
    works = _works(context, decomposition)
    context.progress.begin([*(w.label for w in works), WHOLE])
    results = _work(works, context)
    begun = _begun(context, target, decomposition, works, results)
    results, begun = finals(context, works, results, begun)
    return _Done(results, _composed(context, begun))


def _promises(context: RunContext, plan: Decomposition, done: _Done) -> bool:
    """Whether another fusion plan may be faster than the one that is done, which was measured, by enough to be kept.

    The least it can take: what a task that both have was measured to take, else its floor and the gap before a launch.
    A plan of the same tasks alone is the same plan.
    """
    known = {r.task.place: r.time.us for r in done.results if r.time is not None and r.time.kind == "measured"}
    calls = [call.task for call in plan.calls]
    if done.time is None or all(task.place in known for task in calls):
        return False
    least = sum(known.get(task.place) or _floor(task, context.chip) + 1e6 * NEXT_LAUNCH_S for task in calls)
    return least < WORTH * done.time.us


def _fastest(done: Mapping[str, _Done]) -> str:
    """The name of the plan to be kept: the usual one unless another is faster by more than chance."""
    usual = done[PLAN].time
    times = {name: one.time for name, one in done.items()}
    better = {n: t for n, t in times.items() if t is not None and usual is not None and t.over(usual) < WORTH}
    return min(better, key=lambda name: better[name]) if better else PLAN


def _plan_time(done: _Done | None) -> dict[str, float]:
    return {"us": done.time.us} if done is not None and done.time is not None else {}


def _works(context: RunContext, decomposition: Decomposition) -> list[TaskWork]:
    """The distinct tasks, the largest share of the target's modelled floor first."""
    tasks = decomposition.tasks
    calls = [decomposition.calls_of(task) for task in tasks]
    floors = [_floor(task, context.chip) * count for task, count in zip(tasks, calls, strict=True)]
    total = sum(floors)  # 0 where a few bytes are all that is moved
    shares = [floor / total if total else 1 / len(floors) for floor in floors]
    works = [TaskWork(context, *row) for row in zip(tasks, label_tasks(tasks), calls, shares, strict=True)]
    for work in works:
        context.folder.write(f"prompts/{snf_file(work.label)}", _snf(work.task))
        context.unfinished[work.label] = max(work.share, LEAST_SHARE / len(works))
    order = sorted(range(len(works)), key=lambda i: -floors[i])
    return [works[i] for i in order]


def _work(works: list[TaskWork], context: RunContext) -> list[TaskResult]:
    """Every task's result, in the order of ``works``.  What the machine lacks, or Ctrl-C, ends all, then is raised.

    Where a proposer is waited for, all tasks are under way at once, though no more compute than there are slots.
    """
    at_once = len(works) if any(proposer.learns for proposer in context.proposers) else context.at_once
    pool = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="task")
    futures: list[Future[TaskResult]] = [pool.submit(work.run) for work in works]
    try:
        waiting = set(futures)
        while waiting:  # in short waits, so that Ctrl-C is heard
            done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()  # raises what the task raised
    except BaseException:
        context.stopping.set()
        context.judges.stop()
        pool.shutdown(wait=False, cancel_futures=True)
        wait(futures, timeout=PATIENCE)  # an assembler may be at work; what is recorded is recorded
        raise
    pool.shutdown()
    return [future.result() for future in futures]


def _begun(
    context: RunContext, target: str, decomposition: Decomposition, works: Sequence[TaskWork], results: list[TaskResult]
) -> Composed | None:
    """The whole target by its tasks' fastest winners at its calls' sizes; None where a task has none.

    Where nothing measures it, its time is that of its calls.
    """
    if not all(r.correct for r in results):
        return None
    time = None
    if context.runner is None:
        time = in_sequence((work.time(work.winners[0]), work.calls) for work in works)
    winners = {work.task.place: work.winners for work in works}
    serving = [winners[call.task.place] for call in decomposition.calls]
    return compose.begun(context, Path(target).stem, decomposition, serving, time)


def _composed(context: RunContext, begun: Composed | None) -> Trial | None:
    """The trial of the whole target; None where there is nothing to judge or the time is up."""
    if begun is None:
        context.progress.end(WHOLE, False, "not judged")
        return None
    try:
        return compose.compose(context, begun)
    except RunStopped:
        context.progress.end(WHOLE, False, "stopped")
        return None


def _notes(
    options: RunOptions,
    kind: Kind,
    results: Sequence[TaskResult],
    composed: Trial | None,
    asked: ModelUse | None,
    over: bool,
) -> tuple[str, ...]:
    """What is said below a run's table.  over: whether the budget of minutes is."""
    notes = []
    if asked is not None:
        notes.append(asked.says)
        if not asked.candidates and asked.failure:
            notes.append(f"The language model gave no kernel ({asked.failure}).")
    if over and not (composed and all(r.correct for r in results)):
        notes.append(f"The budget of {options.budget_minutes:g} minutes was over: go on with --resume.")
    done = [r.effort for r in results]
    compiled, span, pruned = (sum(getattr(e, name) for e in done) for name in ("of_all", "span", "pruned"))
    if compiled:
        of = f"{compiled} of {count(span, 'configuration')} of {count(sum(e.files for e in done), 'file')} compiled"
        rest = (
            f"{pruned} ruled out, {span - compiled - pruned} left (--search-seconds {_search_seconds(options, kind):g})"
        )
        notes.append(f"{of}, {rest}; {sum(e.new for e in done)} looked at by this run.")
    else:
        notes.append("No configuration was searched.")
    return tuple(notes)


def _learned(store: Store, progress: Progress) -> Lesson | None:
    """What all that was measured says of rules; None where there is too much of it to be mined by the way."""
    progress.say("what was measured is mined for rules")
    return learn(store.database, NEWEST)


def _rule_notes(lesson: Lesson | None) -> tuple[str]:
    """What a run that measured something new says of rules."""
    if lesson is None:
        return (f"The base has more than {NEWEST:,} measured configurations: `agent kb mine` mines them for rules.",)
    return (f"Mined for rules, with what ships: {lesson.says}{' (agent kb rules)' if lesson.changes else ''}.",)


def _search_seconds(options: RunOptions, kind: Kind) -> float:
    return SEARCH_SECONDS[kind] if options.search_seconds is None else options.search_seconds


def _with_shares(results: Sequence[TaskResult]) -> tuple[TaskResult, ...]:
    times = [(r.time, r.calls) for r in results if r.time is not None]
    total = in_sequence(times) if times else None
    shared = [replace(r, share=_share(r, total)) for r in results]
    return tuple(sorted(shared, key=lambda r: -(r.share or 0.0)))


def _share(result: TaskResult, total: Measurement | None) -> float | None:
    if result.time is None or total is None:
        return None
    return in_sequence([(result.time, result.calls)]).over(total)


def _floor(task: Task, chip: Chip) -> float:
    return floor_us(task, task.sizes, chip)


def _snf(task: Task) -> str:
    return f"# {task.name} {task.identity}\n{task.text}"


def _plan_figures(plan: Decomposition, chip: Chip) -> dict[str, float]:
    floor = sum(_floor(call.task, chip) for call in plan.calls)
    return {"tasks": len(plan.tasks), "calls": len(plan.calls), "floor_us": round(floor, 3)}


def _write_plans(folder: RunFolder, plans: Mapping[str, Decomposition], chip: Chip) -> None:
    import json

    for name, plan in plans.items():
        calls = [
            {
                "task": call.task.name,
                "identity": call.task.identity,
                "ops": operations(call.task),
                "sizes": call.task.sizes,
                "arguments": call.arguments,
                "results": call.results,
                "floor_us": round(_floor(call.task, chip), 3),
            }
            for call in plan.calls
        ]
        folder.write(f"plans/{name}.json", json.dumps({**_plan_figures(plan, chip), "calls": calls}, indent=1) + "\n")
