"""Launch plans, the size language they are written in, what makes numbers of both, and what runs them.

The standard library is all it needs, and anyone may import it; the CUDA driver (:mod:`.driver`) is loaded by who runs
a plan on a GPU.
"""

from .bound import BoundPlan, Buffer, Unlaunchable, bind
from .driver import Driver, DriverError
from .expr import Expr, ExprError, evaluate
from .launcher import Launcher, PreparedPlan
from .plan import Launchable, LaunchPlan, PlanError, loads

__all__ = [
    "BoundPlan",
    "Buffer",
    "Driver",
    "DriverError",
    "Expr",
    "ExprError",
    "LaunchPlan",
    "Launchable",
    "Launcher",
    "PlanError",
    "PreparedPlan",
    "Unlaunchable",
    "bind",
    "evaluate",
    "loads",
]
