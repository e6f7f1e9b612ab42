"""Launch plans, the size language they are written in, and what makes numbers of both.

The standard library is all it needs, and anyone may import it.
"""

from .bound import BoundPlan, Unlaunchable, bind
from .expr import Expr, ExprError, evaluate
from .plan import Launchable, LaunchPlan, PlanError, loads

__all__ = [
    "BoundPlan",
    "Expr",
    "ExprError",
    "LaunchPlan",
    "Launchable",
    "PlanError",
    "Unlaunchable",
    "bind",
    "evaluate",
    "loads",
]
