"""Many kernels for many architectures at once: a pool of threads, each of which waits for one confined tileiras.

Answers come from the cache where it has them; cubins and the assembler's refusals are put there.  Timeouts and crashes
are not: they may be the machine's doing (its load, its memory).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from evaluator import toolchain
from knowledge_base.chips import ARCHS
from knowledge_base.errors import UserError, nearest
from knowledge_base.records import Status, Verdict

from .assemble import OPTIONS, SECONDS, assemble
from .cache import Cache, Compiled, key

Key = tuple[str, str]  # SHA-256 of the bytecode, architecture
Progress = Callable[[Key, "Compiled | Verdict"], None]


def cores() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compile_kernels(
    kernels: Mapping[str, bytes],
    archs: Sequence[str] = ARCHS,
    *,
    jobs: int | None = None,
    slots: threading.Semaphore | None = None,
    cache: Cache | None = None,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> dict[Key, Compiled | Verdict]:
    """Assembles every bytecode (by its SHA-256) for every architecture; a failure is a Verdict in its place.

    jobs: how many tileiras at once (default: the processors).  slots: of which each takes one meanwhile, where several
    calls share the processors.  cache: default the user's.  seconds: of processor
    time, the limit for one; of wall time four times that.
    progress: called in this thread for each answer.  Raises EnvironmentLacks without tileiras, UserError for an unknown
    architecture, ValueError for a bytecode that does not have its hash.
    """
    for arch in archs:
        if arch not in ARCHS:
            near = nearest(arch, ARCHS)
            raise UserError(f"no architecture {arch!r}", f"known are {', '.join(near or ARCHS)}")
    for digest, bytecode in kernels.items():
        if hashlib.sha256(bytecode).hexdigest() != digest:
            raise ValueError(f"bytecode does not have the hash {digest[:12]}…")
    cache = cache if cache is not None else Cache()
    results: dict[Key, Compiled | Verdict] = {}
    wanted: dict[Key, str] = {}
    tool = toolchain.tool("tileiras")
    for digest in kernels:
        for arch in archs:
            name = key(digest, arch, tool.version, OPTIONS)
            known = cache.get(name)
            if known is None:
                wanted[digest, arch] = name
            else:
                results[digest, arch] = known
                if progress:
                    progress((digest, arch), known)
    if wanted:
        pool = ThreadPoolExecutor(max_workers=max(1, min(jobs or cores(), len(wanted))), thread_name_prefix="tileiras")
        try:
            slot = slots or contextlib.nullcontext()

            def assembled(digest: str, arch: str) -> Compiled | Verdict:
                with slot:
                    return assemble(digest, kernels[digest], arch, tool, seconds)

            running = {pool.submit(assembled, *k): k for k in wanted}
            for future in as_completed(running):
                k, answer = running[future], future.result()
                results[k] = answer
                if _lasting(answer):
                    cache.put(wanted[k], answer)
                if progress:
                    progress(k, answer)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return {(digest, arch): results[digest, arch] for digest in kernels for arch in archs}


def _lasting(answer: Compiled | Verdict) -> bool:
    """Whether the same bytecode would be answered so again, on any machine."""
    if isinstance(answer, Compiled):
        return True
    return answer.status is Status.COMPILE_ERROR and answer.error_class != "assembler-crash"
