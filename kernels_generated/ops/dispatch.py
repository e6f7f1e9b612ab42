"""Which kernel runs: of the winners for an architecture the one that was fastest nearest to these sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping

from kernels_generated.runtime.expr import Expr, evaluate, symbols
from kernels_generated.runtime.launch_rules import SIZE_DIVISOR
from kernels_generated.runtime.manifest import Manifest, Winner
from kernels_generated.runtime.plan import LaunchPlan

# TMA reads and writes rows that begin at aligned addresses.  For others there are other kernels, and what is fast
# differs: 2,048 by 50,257 in the configuration for 50,304 took ten times what it takes in that for 1,024 by 50,257.
# So much, in powers of two of size, do rows of the other sort count.
UNLIKE_ROWS = 4.0


def applicable(
    manifest: Manifest, arch: str, num_sms: int, sizes: Mapping[str, int]
) -> Iterator[tuple[Winner, LaunchPlan]]:
    """The winners that may run at these sizes, each by the first of its plans that applies, best first.

    A measured time counts more than a modelled one, then comes how near the sizes are at which it was taken (in powers
    of two, over all dimensions; arrays whose rows are aligned and those whose are not are further apart), then the time
    itself.
    """
    dims = {**sizes, "num_sms": num_sms}
    lengths = {t.shape[-1] for t in (*manifest.inputs, *manifest.outputs) if t.shape}

    def aligned(length: Expr, at: Mapping[str, int]) -> bool:
        return evaluate(length, at) % SIZE_DIVISOR == 0

    def order(winner: Winner) -> tuple[bool, float, float]:
        away = sum(abs(math.log2(sizes[dim] / n)) for dim, n in winner.shape.items())
        away += sum(UNLIKE_ROWS for one in lengths if aligned(one, sizes) != aligned(one, winner.shape))
        return winner.kind != "measured", away, winner.us

    for winner in sorted((one for one in manifest.winners if one.arch == arch), key=order):
        plan = next((plan for plan in (_plan(manifest, digest) for digest in winner.plans) if plan.applies(dims)), None)
        if plan is not None:
            yield winner, plan


def packings(manifest: Manifest, arch: str, dims: Mapping[str, int]) -> Iterator[LaunchPlan]:
    """The plans of winners for an architecture that want weights prepared, and may hold where ``dims`` are these.

    dims: the weights' and num_sms; what guards say of others is left open.
    """
    for digest in dict.fromkeys(d for one in manifest.winners if one.arch == arch for d in one.plans):
        plan = _plan(manifest, digest)
        told = (g for g in plan.guards if symbols(g.left) | symbols(g.right) <= dims.keys())
        if plan.packing and all(guard.holds(dims) for guard in told):
            yield plan


@functools.lru_cache(maxsize=512)
def _plan(manifest: Manifest, digest: str) -> LaunchPlan:
    return manifest.plan(digest)
