"""What works: a target's tasks, each given a proven kernel, and what becomes of that.

:mod:`.target_work` is a whole run, :mod:`.task_work` one task's way: propose, search (:mod:`.searching`), judge
(:mod:`.judges`), record (:mod:`.conclude`, :mod:`.winners`).  No command is known here.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from . import winners as winners
    from .assay import Assay as Assay
    from .assay import Assemblers as Assemblers
    from .assay import over as over
    from .cluster import Cluster as Cluster
    from .compose import WHOLE as WHOLE
    from .compose import composition as composition
    from .enumeration import configurations as configurations
    from .labels import label_tasks as label_tasks
    from .lookup import looked_up as looked_up
    from .prior import Prior as Prior
    from .prior import prior_of as prior_of
    from .ranking import in_file as in_file
    from .report import final_table as final_table
    from .rundir import RUNS as RUNS
    from .rundir import RunFolder as RunFolder
    from .rundir import find_run as find_run
    from .rundir import new_id as new_id
    from .searching import POOL as POOL
    from .searching import SearchResult as SearchResult
    from .searching import prior_for as prior_for
    from .searching import search as search
    from .summary import RunSummary as RunSummary
    from .summary import TaskResult as TaskResult
    from .target_work import NEWEST as NEWEST
    from .target_work import PLAN as PLAN
    from .target_work import RunOptions as RunOptions
    from .target_work import measured_spaces as measured_spaces
    from .target_work import run as run
    from .target_work import versions as versions
    from .task_work import known_trials as known_trials
else:
    __getattr__, __all__ = exports(
        __name__,
        assay=["Assay", "Assemblers", "over"],
        cluster=["Cluster"],
        compose=["WHOLE", "composition"],
        enumeration=["configurations"],
        lookup=["looked_up"],
        prior=["Prior", "prior_of"],
        ranking=["in_file"],
        report=["final_table"],
        rundir=["RUNS", "RunFolder", "find_run", "new_id"],
        searching=["POOL", "SearchResult", "prior_for", "search"],
        summary=["RunSummary", "TaskResult"],
        labels=["label_tasks"],
        target_work=["NEWEST", "PLAN", "RunOptions", "measured_spaces", "run", "versions"],
        task_work=["known_trials"],
    )
