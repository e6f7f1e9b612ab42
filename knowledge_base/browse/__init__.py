"""What people browse: the rows behind ``agent kb``, as plain dictionaries ready for a table or for JSON.

Reading only.  Each function makes few queries that an index answers; ids are full content keys (the command line shows
prefixes and ``show`` takes them).  Times are µs and always stand beside their kind: measured or modelled.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .asking import tasks_of as tasks_of
    from .finding import CLOSE as CLOSE
    from .finding import KINDS as KINDS
    from .finding import OPEN as OPEN
    from .finding import search as search
    from .learning import curves as curves
    from .listings import attempts as attempts
    from .listings import calls as calls
    from .listings import facts as facts
    from .listings import kernels as kernels
    from .listings import rules as rules
    from .listings import runs as runs
    from .listings import specifications as specifications
    from .listings import tasks as tasks
    from .things import show as show
else:
    __getattr__, __all__ = exports(
        __name__,
        asking=["tasks_of"],
        finding=["CLOSE", "KINDS", "OPEN", "search"],
        learning=["curves"],
        listings=["attempts", "calls", "facts", "kernels", "rules", "runs", "specifications", "tasks"],
        things=["show"],
    )
