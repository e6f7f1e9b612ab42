"""How long a trial takes: a timer gives it, and what the model's timer needs to say it without a GPU.

:mod:`.timer` has the protocol and the timers, :mod:`.model` the modelled time and the floor of a task (docs/model.md),
:mod:`.work` what a launch does, counted without running it.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .clock import Measured as Measured
    from .clock import measured as measured
    from .intervals import Interval as Interval
    from .intervals import median as median
    from .intervals import ratio as ratio
    from .model import NEXT_LAUNCH_S as NEXT_LAUNCH_S
    from .model import floor_us as floor_us
    from .model import ideal_us as ideal_us
    from .model import modelled as modelled
    from .model import peak as peak
    from .remeasure import PROCESSES as PROCESSES
    from .remeasure import in_fresh_processes as in_fresh_processes
    from .remeasure import remeasured as remeasured
    from .timer import MODEL as MODEL
    from .timer import Known as Known
    from .timer import Modelled as Modelled
    from .timer import Timer as Timer
    from .timer import timed as timed
else:
    __getattr__, __all__ = exports(
        __name__,
        clock=["Measured", "measured"],
        remeasure=["PROCESSES", "in_fresh_processes", "remeasured"],
        intervals=["Interval", "median", "ratio"],
        model=["NEXT_LAUNCH_S", "floor_us", "ideal_us", "modelled", "peak"],
        timer=["MODEL", "Known", "Modelled", "Timer", "timed"],
    )
