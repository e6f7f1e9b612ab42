"""Entry point of the confined child: imports one candidate, answers every request, and exits.

The request comes as one JSON document on standard input.  Each answer is a line on what was standard output: a nonce,
then JSON: a plan, or one of the failures of :mod:`.refusal`.  The candidate's own prints go to standard error, which
the parent bounds.  Everything said here is a claim, which the parent checks: the candidate shares this process and can
say anything.
"""

from __future__ import annotations

import base64
import builtins
import fcntl
import gc
import json
import linecache
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

# cuTile registers torch's and numpy's dtypes if it finds them: it finds the stand-in, and no numpy (60 ms).
sys.modules["numpy"] = None  # type: ignore[assignment]

from evaluator.confinement import lockdown  # noqa: E402

from . import contract, fake_torch  # noqa: E402
from .refusal import Refusal  # noqa: E402


class _Current:
    """Sends the stand-in's questions to the trace under way."""

    recorder: Any = None

    def __getattr__(self, name: str) -> Any:
        if self.recorder is None:
            raise Refusal("outside-launch", "workspaces and device queries belong inside launch")
        return getattr(self.recorder, name)


_current = _Current()


def warm() -> None:
    """Imports what every request needs, before any came."""
    gc.disable()  # a short life with few cycles; collecting costs a tenth of the imports
    if "torch" in sys.modules:
        return
    sys.modules["torch"] = fake_torch.module(_current)  # type: ignore[arg-type]
    # cuTile's tuner measures on a GPU: nothing for a plan, and 18 ms of imports.
    sys.modules["cuda.tile.tune"] = fake_torch.Refusing("cuda.tile.tune", why="values to choose from belong in AXES")
    import_module(".recorder", __package__)


def main() -> None:
    """Reads the request, answers, and leaves by ``os._exit``: no exit handler of the candidate runs."""
    warm()
    request = json.load(sys.stdin.buffer)
    pipe = os.fdopen(fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 64), "wb", buffering=0)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    answer = _Answer(pipe, request["nonce"])
    from .recorder import Exporter

    # Everything that starts or loads something is done: from here on this process only computes.
    if request["filter"]:
        lockdown.refuse(base64.b64decode(request["filter"]))
    answer.send({"ready": True})
    deadline = _Deadline(answer)
    deadline.set("import", request["import_s"])
    module, failure = _load(request["source"], _current)
    if failure is None and request["packing"] is not None and not callable(module.__dict__.get("pack")):
        failure = _failure(Refusal("bad-packing", "after the import there is no function pack"), "import")
    answer.send({"imported": True})
    deadline.set("trace", request["trace_s"])
    exporter = Exporter(contract.FILENAME)
    for number, one in enumerate(request["requests"]):
        if failure is None:
            try:
                result = _trace(module, request, one, exporter, _current, answer.sent)
            except BaseException as error:
                result = {"failure": _failure(error, "trace")}
            finally:
                if _current.recorder is not None:
                    _current.recorder.context.closed = True
                _current.recorder = None
        else:
            result = {"failure": failure}
        answer.send({"request": number, **result})
    answer.send({"done": True})
    os._exit(0)


class _Answer:
    """The pipe to the parent.  ``sent`` holds the hashes of the bytecodes that have gone over it."""

    def __init__(self, pipe: Any, nonce: str) -> None:
        self._pipe, self._nonce = pipe, nonce.encode()
        self.sent: set[str] = set()

    def send(self, message: dict[str, Any]) -> None:
        data = self._nonce + b" " + json.dumps(message, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[self._pipe.write(data) :]


class _Deadline:
    """A timer per stage that names the candidate's line.  It stops Python; the parent's deadline stops the rest."""

    def __init__(self, answer: _Answer) -> None:
        self._answer, self._stage, self._limit = answer, "", 0.0
        signal.signal(signal.SIGALRM, self._ring)

    def set(self, stage: str, seconds: float) -> None:
        self._stage, self._limit = stage, seconds
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _ring(self, _signal: int, frame: Any) -> None:
        line = None
        while frame is not None:
            if frame.f_code.co_filename == contract.FILENAME:
                line = frame.f_lineno
                break
            frame = frame.f_back
        what = "importing the file" if self._stage == "import" else "launch"
        self._answer.send({"late": self._stage, "message": f"{what} took more than {self._limit:g} s", "line": line})
        os._exit(0)


def _load(source: str, current: _Current) -> tuple[Any, dict[str, Any] | None]:
    """The candidate's module, or what made its import fail."""
    import cuda.tile

    def launch(*args: Any, **kwargs: Any) -> Any:
        if current.recorder is None:
            raise Refusal("outside-launch", "ct.launch is called from launch only")
        return current.recorder.launch(*args, **kwargs)

    cuda.tile.launch = cuda.tile._cext.launch = launch
    module = types.ModuleType("candidate")
    module.__file__ = contract.FILENAME
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
    sys.modules["candidate"] = module
    # No modification time: linecache then never looks for the file, and inspect finds the kernel's text.
    linecache.cache[contract.FILENAME] = (len(source), None, source.splitlines(keepends=True), contract.FILENAME)
    try:
        exec(compile(source, contract.FILENAME, "exec"), module.__dict__)
        if not callable(module.__dict__.get("launch")):
            raise Refusal("missing-launch", "after the import there is no function launch")
    except BaseException as error:
        return module, _failure(error, "import")
    return module, None


def _import(name: str, namespace: Any = None, local: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    if level or (name not in contract.MODULES and name != "cuda"):
        raise ImportError(f"import of {name}: {contract.ALLOWED}")
    return builtins.__import__(name, namespace, local, fromlist, 0)


def _trace(
    module: Any, question: Any, request: Any, exporter: Any, current: _Current, sent: set[str]
) -> dict[str, Any]:
    from .recorder import NUM_SMS, Recorder

    packing = question["packing"]

    def launched() -> tuple[Recorder, dict[str, Any]]:
        recorder = Recorder(question["task"], request, question["chip"], exporter)
        current.recorder = recorder
        options = dict(request["axes"])
        if request["takes_num_sms"]:
            options[NUM_SMS] = recorder.num_sms()
        namespace = module.__dict__
        inputs, results = recorder.arguments()
        packed: list[Any] = []
        if packing is not None:
            named = recorder.packed(packing, options)
            packed = [named[one["name"]] for one in packing["packed"]]
            keywords = {name: options[name] for name in packing["keywords"] if name in options}
            if NUM_SMS in packing["keywords"] and NUM_SMS not in keywords:
                keywords[NUM_SMS] = recorder.num_sms()
            with recorder.shadowed(namespace), recorder.packs():
                namespace["pack"](fake_torch.Stream(), *(named[name] for name in packing["arguments"]), **keywords)
        with recorder.shadowed(namespace):
            namespace["launch"](fake_torch.Stream(), *inputs, *packed, *results, **options)
        return recorder, recorder.plan()

    start = time.perf_counter()
    recorder, plan = launched()
    recorder.context.closed = True
    _again(launched, plan)
    new = {h: base64.b64encode(b).decode() for h, b in recorder.kernels.items() if h not in sent}
    sent.update(new)
    seconds = time.perf_counter() - start
    return {
        "plan": plan,
        "names": recorder.names,
        "kernels": new,
        "chip_facts": sorted(set(recorder.chip_facts)),
        "seconds": seconds,
    }


def _again(launched: Callable[[], tuple[Any, dict[str, Any]]], plan: dict[str, Any]) -> None:
    """Refuses a ``launch`` that does something else when it is called once more: it keeps something between calls."""
    try:
        _, again = launched()
    except Refusal:  # a size or an array of the first call, which says more
        raise
    except Exception as error:
        said = f"called a second time with the same arguments, launch raises {type(error).__name__}: {error}"
        raise Refusal("launch-changes", said) from error
    if again != plan:
        part = next(name for name in plan if plan[name] != again[name])
        said = f"called a second time with the same arguments, launch makes another plan: its {part} differ"
        raise Refusal("launch-changes", said)


def _failure(error: BaseException, stage: str) -> dict[str, Any]:
    """What the exception says of the candidate: one of FAILURES, the stage, a message and the line."""
    from .export import FrontEndError

    line = _line(error)
    message = f"{type(error).__name__}: {error}"
    kind = "import-raised" if stage == "import" else "launch-raised"
    if isinstance(error, FrontEndError):
        kind, message, line = "front-end", f"{error.message}", error.line or line
    elif isinstance(error, Refusal):
        kind, message = error.error_class, error.message
    elif isinstance(error, ValueError) and stage == "trace":
        kind, message = "infeasible", str(error) or "launch raised ValueError"
    elif isinstance(error, MemoryError):
        kind, message = "memory-limit", "the child's memory limit was reached"
    elif isinstance(error, SystemExit):
        kind, message = "exited", f"the file called sys.exit({error.code!r})"
    elif isinstance(error, ImportError) and str(error).startswith("import of "):
        kind, message = "forbidden-import", str(error)
    elif isinstance(error, RecursionError):
        kind = "too-deep"
    return {"stage": stage, "kind": kind, "message": message[:2000], "line": line}


def _line(error: BaseException) -> int | None:
    line = None
    trail = error.__traceback__
    while trail is not None:
        if trail.tb_frame.f_code.co_filename == contract.FILENAME:
            line = trail.tb_lineno
        trail = trail.tb_next
    if line is None and isinstance(error, SyntaxError):
        line = error.lineno
    return line
