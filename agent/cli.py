"""The command line: names, options and exit codes, and nothing else.

Each command imports what it needs when it runs, so that ``agent --help`` takes a blink.  What a user can mend is said
in two lines on standard error with its exit code; a defect of ours keeps its traceback.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from knowledge_base import errors

EXIT_PIPE = 141  # 128 + SIGPIPE, as of a program that the signal ended: `agent kb facts | head`


class Commands(typer.core.TyperGroup):
    """The commands.  Ctrl-C in one is said as what else ends it is; typer would end it without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise errors.Interrupted from None


app = typer.Typer(
    name="agent",
    cls=Commands,
    help="Writes cuTile kernels for a network's pieces, proves them right, times them, and remembers what it learned.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=False,
)
kb = typer.Typer(help="Browse the knowledge base: what was tried, what won, what is believed and why.")
app.add_typer(kb, name="kb")
experiment = typer.Typer(help="What the knowledge base is worth, tried on measured configurations; no GPU is needed.")
app.add_typer(experiment, name="experiment")

Target = Annotated[str, typer.Option("--target", "-t", metavar="NAME|FILE.snf", help="What to write kernels for.")]
TaskOption = Annotated[str, typer.Option("--task", metavar="NAME|FILE.snf", help="The task the file computes.")]
File = Annotated[str, typer.Argument(metavar="FILE.py", help="A candidate file.")]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="CHIP", help="Chip: rtx5070, b200, …, auto.")]
Device = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where kernels run.")]
Shape = Annotated[list[str] | None, typer.Option("--shape", metavar="k=v,…", help="Sample sizes: B=2,T=128.")]
Axes = Annotated[list[str] | None, typer.Option("--axes", metavar="k=v,…", help="Configuration: TM=64,TN=128.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Of hidden inputs and judged sizes; else random.")]
SeedOr0 = Annotated[int, typer.Option("--seed", help="Of what is drawn.")]
Jobs = Annotated[int, typer.Option("--jobs", min=0, help="Processes at once; 0: as many as there are cores.")]
SearchSeconds = Annotated[
    float | None,
    typer.Option("--search-seconds", min=0, help="No configuration is begun later; run: 120 with a GPU, else 40."),
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="ADDRESS", help="A Dask scheduler whose workers search, too.")
]
Db = Annotated[str | None, typer.Option("--db", metavar="URL", help="Knowledge base: file or SQLAlchemy URL.")]
Sandbox = Annotated[
    str | None, typer.Option("--require-sandbox", metavar="LEVEL", help="Exit 3 below it: full, filtered or limited.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, nothing else.")]
Op = Annotated[str, typer.Option("--op", "--task", help="Only this op or task.")]
Chip = Annotated[str, typer.Option("--gpu", metavar="CHIP", help="Only this chip.")]
Status = Annotated[str, typer.Option("--status", help="Only this status.")]
OfRun = Annotated[str, typer.Option("--run", help="Only this run's, in its order.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="At most so many rows.")]


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        try:
            version = metadata.version("tilewright")
        except metadata.PackageNotFoundError:  # run from a checkout that was never installed
            version = "not installed"
        typer.echo(f"agent (tilewright) {version}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _agent(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and end.")
    ] = False,
) -> int:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    return errors.EXIT_DONE


@app.command()
def run(
    target: Target = "",
    gpu: Gpu = None,
    device: Device = "auto",
    proposer: Annotated[
        str, typer.Option("--proposer", metavar="NAME", help="auto, synthesizer, manual or openai.")
    ] = "auto",
    model: Annotated[str | None, typer.Option("--model", help="Language model, for --proposer openai.")] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Of proposals for a task: 8 of a model's, else 2.")
    ] = None,
    budget_minutes: Annotated[
        float | None, typer.Option("--budget-minutes", min=0, help="Start nothing new after this.")
    ] = None,
    budget_tokens: Annotated[
        int | None, typer.Option("--budget-tokens", min=0, help="Of a model's prompts and answers; else 500000.")
    ] = None,
    budget_usd: Annotated[
        float | None, typer.Option("--budget-usd", min=0, help="Of a model that has a price; else no limit.")
    ] = None,
    prices: Annotated[
        str | None, typer.Option("--prices", metavar="FILE.toml", help="Prices of models, before the known ones.")
    ] = None,
    shape: Shape = None,
    db: Db = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with a run that stopped.")
    ] = None,
    replay: Annotated[
        str | None, typer.Option("--replay", metavar="RUN|FILE|NAME", help="Answer each call as it was recorded.")
    ] = None,
    record: Annotated[
        str | None, typer.Option("--record", metavar="FILE", help="Write the run's calls there, for --replay.")
    ] = None,
    seed: Seed = None,
    jobs: Jobs = 0,
    search_seconds: SearchSeconds = None,
    cluster: Cluster = None,
    require_sandbox: Sandbox = None,
    as_json: Json = False,
) -> int:
    """Write, prove and rank kernels for every task of a target."""
    from .commands import options, run_command

    options.require_sandbox(require_sandbox)
    return run_command.run(
        target=target,
        gpu=gpu,
        device=device,
        proposer=proposer,
        model=model,
        rounds=rounds,
        budget_minutes=budget_minutes,
        budget_tokens=budget_tokens,
        budget_usd=budget_usd,
        prices=prices,
        shape=options.sizes(shape),
        db=db,
        resume=resume,
        replay=replay,
        record=record,
        seed=seed,
        search_seconds=search_seconds,
        jobs=jobs,
        cluster=cluster,
        as_json=as_json,
    )


@app.command()
def bench(
    target: Target = "",
    shape: Shape = None,
    gpu: Gpu = None,
    device: Device = "auto",
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="For the pictures; else runs/bench/….")
    ] = None,
    seed: Seed = None,
    db: Db = None,
    as_json: Json = False,
) -> int:
    """Time a target's best known kernels beside PyTorch and other libraries."""
    from .commands import bench_command, options

    return bench_command.bench(
        target=target,
        shape=options.sizes(shape),
        gpu=gpu,
        device=device,
        out=out,
        seed=seed,
        db=db,
        as_json=as_json,
    )


@app.command()
def compare(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A FILE.py, a folder of transformers, gpt2, gpt2-xl, …")
    ],
    shape: Annotated[
        list[str] | None, typer.Option("--shape", metavar="B=1,T=128", help="Of tokens; a file has its own example.")
    ] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", metavar="bf16|f16|f32", help="Else the model's own.")] = None,
    mode: Annotated[
        str, typer.Option("--mode", metavar="NAME", help="Of torch.compile; default, max-autotune, none, …")
    ] = "reduce-overhead",
    gpu: Gpu = None,
    device: Device = "auto",
    as_json: Json = False,
) -> int:
    """A whole model of PyTorch on generated kernels: what is replaced, its error and, on a GPU, its time."""
    from .commands import compare_command, options

    return compare_command.compare(model, options.sizes(shape), dtype, mode, gpu, device, as_json)


@app.command()
def prompt(
    target: Target = "",
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="One of the target's tasks, or any task.")] = "",
    shape: Shape = None,
    gpu: Gpu = None,
    model: Annotated[str, typer.Option("--model", help="As the request would name it.")] = "",
    db: Db = None,
    as_json: Json = False,
) -> int:
    """Show what a language model would be told about a task, with about how many tokens each part has."""
    from .commands import options
    from .commands import prompt_command as command

    return command.prompt(target, task, options.sizes(shape), gpu, model, db, as_json)


@app.command()
def check(
    file: File,
    task: TaskOption,
    shape: Shape = None,
    axes: Axes = None,
    gpu: Gpu = None,
    device: Device = "auto",
    seed: Seed = None,
    db: Db = None,
    require_sandbox: Sandbox = None,
    as_json: Json = False,
) -> int:
    """Judge one candidate file: exit 0 if it is correct, 1 if it is rejected."""
    from .commands import check as command
    from .commands import options

    options.require_sandbox(require_sandbox)
    return command.check(file, task, options.sizes(shape), options.axes(axes), gpu, device, seed, db, as_json)


@app.command()
def search(
    file: File,
    task: TaskOption,
    shape: Shape = None,
    gpu: Gpu = None,
    device: Device = "auto",
    seed: SeedOr0 = 0,
    jobs: Jobs = 0,
    search_seconds: SearchSeconds = None,
    cluster: Cluster = None,
    db: Db = None,
    require_sandbox: Sandbox = None,
    as_json: Json = False,
) -> int:
    """Compile every configuration of a candidate file and rank them: by measured time on a GPU, else by modelled."""
    from .commands import options
    from .commands import search_command as command

    options.require_sandbox(require_sandbox)
    return command.search(
        file, task, options.sizes(shape), gpu, device, seed, jobs, search_seconds, cluster, db, as_json
    )


@app.command()
def emulate(
    file: File,
    task: TaskOption,
    shape: Shape = None,
    axes: Axes = None,
    gpu: Gpu = None,
    seed: SeedOr0 = 0,
    require_sandbox: Sandbox = None,
    as_json: Json = False,
) -> int:
    """Run one candidate file at one shape on the CPU, from its Tile IR, and compare with PyTorch."""
    from .commands import check as command
    from .commands import options

    options.require_sandbox(require_sandbox)
    return command.emulate(file, task, options.sizes(shape), options.axes(axes), gpu, seed, as_json)


@app.command()
def promote(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="All tasks of the run if left out.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="DIR", help="Instead of kernels_generated/.")] = None,
    db: Db = None,
    as_json: Json = False,
) -> int:
    """Copy a run's winners into kernels_generated/."""
    from .commands import promote as command

    return command.promote(run, task, to, db, as_json)


@app.command()
def doctor(db: Db = None, as_json: Json = False) -> int:
    """Say what this machine can do, what is missing, and the command that mends each."""
    from .commands import doctor as command

    return command.doctor(db, as_json)


@app.command()
def targets(
    target: Annotated[str | None, typer.Argument(metavar="NAME|FILE.snf", help="One target: its tasks.")] = None,
    as_json: Json = False,
) -> int:
    """List the targets and tasks that ship; or one target's tasks, and what launch is given for each."""
    from .commands import targets as command

    return command.listing(as_json) if target is None else command.tasks(target, as_json)


def _listing(what: str, as_json: bool, db: str | None, limit: int = 50, **filters: str) -> int:
    from .commands import kb as command

    return command.listing(what, db, filters, limit, as_json)


@kb.callback(invoke_without_command=True)
def _kb(context: typer.Context) -> int:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    return errors.EXIT_DONE


@experiment.command()
def compounding(
    tries: Annotated[int, typer.Option("--tries", min=1, help="Of a search.")] = 40,
    orders: Annotated[int, typer.Option("--orders", min=1, help="In which the searches come one after another.")] = 12,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Of each search; their mean counts.")] = 8,
    as_json: Json = False,
) -> int:
    """The same searches with a knowledge base and without: in sequence, with parts left out, and with wrong ones."""
    from .commands import experiment_command

    return experiment_command.compounding(tries, orders, seeds, as_json)


@kb.command()
def facts(op: Op = "", gpu: Chip = "", db: Db = None, as_json: Json = False) -> int:
    """Figures and findings, each with its source."""
    return _listing("facts", as_json, db, op=op, gpu=gpu)


@kb.command()
def rules(op: Op = "", gpu: Chip = "", status: Status = "", db: Db = None, as_json: Json = False) -> int:
    """What is believed: hypothesised, supported, refuted or superseded."""
    return _listing("rules", as_json, db, op=op, gpu=gpu, status=status)


@kb.command()
def mine(db: Db = None, as_json: Json = False) -> int:
    """Find rules in what was measured, and hold those that are there to it."""
    from .commands import kb as command

    return command.mine(db, as_json)


@kb.command()
def kernels(
    op: Op = "", gpu: Chip = "", status: Status = "", limit: Limit = 50, db: Db = None, as_json: Json = False
) -> int:
    """Winners: measured, modelled or promoted."""
    return _listing("kernels", as_json, db, limit, op=op, gpu=gpu, status=status)


@kb.command()
def runs(gpu: Chip = "", status: Status = "", limit: Limit = 50, db: Db = None, as_json: Json = False) -> int:
    """Runs, latest first."""
    return _listing("runs", as_json, db, limit, gpu=gpu, status=status)


@kb.command()
def attempts(
    op: Op = "",
    gpu: Chip = "",
    status: Status = "",
    run: OfRun = "",
    limit: Limit = 50,
    db: Db = None,
    as_json: Json = False,
) -> int:
    """Every trial, latest first."""
    return _listing("attempts", as_json, db, limit, op=op, gpu=gpu, status=status, run=run)


@kb.command()
def calls(
    op: Op = "", status: Status = "", run: OfRun = "", limit: Limit = 50, db: Db = None, as_json: Json = False
) -> int:
    """What language models were asked, latest first: tokens, price, outcome."""
    return _listing("calls", as_json, db, limit, op=op, status=status, run=run)


@kb.command()
def tasks(op: Op = "", gpu: Chip = "", db: Db = None, as_json: Json = False) -> int:
    """Tasks, how often each was tried, and the best so far."""
    return _listing("tasks", as_json, db, op=op, gpu=gpu)


@kb.command()
def why(
    task: Annotated[str, typer.Argument(metavar="TASK", help="One of the target's tasks, or any task.")],
    target: Target = "",
    shape: Shape = None,
    gpu: Gpu = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Else as many as a prompt has for it.")] = None,
    db: Db = None,
    as_json: Json = False,
) -> int:
    """What a language model would be told of what is known about a task, how it is ranked, and why."""
    from .commands import options, why_command

    return why_command.why(task, target, options.sizes(shape), gpu, tokens, db, as_json)


@kb.command()
def report(
    out: Annotated[str | None, typer.Option("--out", metavar="FILE.html", help="Else runs/knowledge.html.")] = None,
    op: Op = "",
    gpu: Chip = "",
    db: Db = None,
    as_json: Json = False,
) -> int:
    """Write it on one page of HTML: best kernels, roofline, learning curves, rules with their intervals."""
    from .commands import report_command

    return report_command.report(out, op, gpu, db, as_json)


@kb.command()
def serve(
    host: Annotated[str, typer.Option("--host", help="Where it is to be seen from.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8001,
    db: Db = None,
) -> int:
    """Show it in a browser with Datasette (pip install datasette): tables, SQL, ready questions; read-only."""
    from .commands import serve_command

    return serve_command.serve(host, port, db)


@kb.command("search")
def search_words(
    words: Annotated[list[str], typer.Argument(metavar="WORD…", help="All of them; 'two words' are a phrase.")],
    kind: Annotated[str, typer.Option("--kind", help="task, kernel, trial, rule, fact or call.")] = "",
    limit: Limit = 20,
    db: Db = None,
    as_json: Json = False,
) -> int:
    """Search by words: sources and notes, error messages, rules, facts, specifications and models' answers."""
    from .commands import kb as command

    return command.search(words, kind, limit, db, as_json)


@kb.command()
def show(
    id: Annotated[str, typer.Argument(metavar="ID|NAME", help="The beginning of any id, a task's or a GPU's name.")],
    gpu: Chip = "",
    db: Db = None,
    as_json: Json = False,
) -> int:
    """Everything about one task, chip, kernel, run, trial, rule, fact, call or other base.

    Of a task: what is fastest on each GPU and what lost to it and why.  Of a kernel: what it was made from, and the
    changes on the way.  Of a run: its winners and learning curves.
    """
    from .commands import show_command

    return show_command.show(id, gpu, db, as_json)


@kb.command()
def verify(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="The beginning of its id: `agent kb rules`.")],
    task: Annotated[str, typer.Option("--task", help="Where to test it: an everyday task, or an SNF file.")] = "",
    shape: Shape = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be measured; needs no GPU.")] = False,
    gpu: Gpu = None,
    seed: Annotated[int, typer.Option("--seed", help="Of inputs, and of which configurations are compared.")] = 0,
    jobs: Jobs = 0,
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="No more pairs are begun later.")] = 300.0,
    db: Db = None,
    require_sandbox: Sandbox = None,
    as_json: Json = False,
) -> int:
    """Plan and run, on a GPU, the cheapest paired experiment that could refute a rule."""
    from .commands import options, verify_command

    options.require_sandbox(require_sandbox)
    return verify_command.verify(rule, task, options.sizes(shape), gpu, plan, seed, jobs, seconds, db, as_json)


@kb.command()
def export(
    file: Annotated[str, typer.Argument(metavar="FILE.jsonl[.gz]", help="It is replaced as a whole.")],
    op: Op = "",
    gpu: Chip = "",
    db: Db = None,
    as_json: Json = False,
) -> int:
    """Write what this base found to a file, for another base: trials, winners, rules with their evidence."""
    from .commands import share_command

    return share_command.export(file, op, gpu, db, as_json)


@kb.command("import")
def import_rows(
    file: Annotated[str, typer.Argument(metavar="FILE.jsonl[.gz]", help="Of `agent kb export`.")],
    db: Db = None,
    as_json: Json = False,
) -> int:
    """Read what another base found: shown as foreign, beside what is known here, until a run judges it."""
    from .commands import share_command

    return share_command.import_rows(file, db, as_json)


def invoke(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code; errors are said, not raised (defects of ours are)."""
    from agent import console

    as_json = "--json" in arguments
    try:
        return int(_command()(args=arguments, prog_name="agent", standalone_mode=False) or 0)
    except errors.UserError as error:
        console.complain(error, as_json)
        return error.exit_code
    except typer.TyperException as error:
        context: Any = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "agent"
        console.complain(errors.UserError(error.format_message(), f"Try `{path} --help`."), as_json)
        return errors.EXIT_USAGE
    except (typer.Abort, KeyboardInterrupt):
        console.complain(errors.Interrupted(), as_json)
        return errors.EXIT_INTERRUPTED
    except SystemExit as ending:  # click and rich end with 1 when a pipe breaks
        broken = ending.__context__
        if not isinstance(broken, BrokenPipeError):
            raise
        if not _readers_gone():
            raise broken from None  # a pipe of our own: a defect
        return EXIT_PIPE


def _readers_gone() -> bool:
    """Whether standard output or error is a pipe that nobody reads any more; such a one is replaced by nothing."""
    gone = []
    for descriptor in (1, 2):
        poll = select.poll()
        poll.register(descriptor, select.POLLERR)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            gone.append(descriptor)
    for descriptor in gone:
        _to_nothing(descriptor)
    return bool(gone)


def _to_nothing(descriptor: int) -> None:
    """What is still buffered for it goes nowhere, without a complaint at the end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)


def _standard_streams() -> None:
    """Opens what was closed before the start: else the next file that is opened gets that number, and our words."""
    from agent.console import Stream

    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # the lowest free number is this one
    sys.stdout, sys.stderr = Stream.instead_of(sys.stdout, 1), Stream.instead_of(sys.stderr, 2)


def _command() -> Callable[..., Any]:
    return typer.main.get_command(app)


def main() -> None:
    """The console script ``agent``."""
    from agent import console

    _standard_streams()
    code = invoke(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            _readers_gone()
            code = EXIT_PIPE
        except errors.EnvironmentLacks as error:
            _to_nothing(stream.fileno())
            if code != error.exit_code:
                console.complain(error, False)
            code = error.exit_code
    if code in (errors.EXIT_INTERRUPTED, EXIT_PIPE):
        # Threads may still wait for an assembler; its process ends with this one.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
