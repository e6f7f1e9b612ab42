"""Replay: launch plans on a GPU, in a process of its own that never runs a candidate's Python.

:mod:`.runner` is what callers have, :mod:`.runner_server` the process behind it, :mod:`.bench` what that can be asked.
There :mod:`.card` runs a plan between guard zones, by the launcher of :mod:`kernels_generated.runtime` and a
:mod:`.device`.  :mod:`.confirm` is what a winner has to pass: right on the GPU, as it is on the emulator.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .composition import OURS as OURS
    from .composition import Composition as Composition
    from .composition import cubins_of as cubins_of
    from .confirm import confirmed as confirmed
    from .runner import CUDA as CUDA
    from .runner import AnyRunner as AnyRunner
    from .runner import Runner as Runner
    from .runners import Runners as Runners
    from .runners import runner_for as runner_for
    from .wire import Spoiled as Spoiled
else:
    __getattr__, __all__ = exports(
        __name__,
        confirm=["confirmed"],
        composition=["OURS", "Composition", "cubins_of"],
        runner=["CUDA", "AnyRunner", "Runner"],
        runners=["Runners", "runner_for"],
        wire=["Spoiled"],
    )
