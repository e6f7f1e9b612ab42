"""The judge: is this candidate right?  The meaning of right is docs/judging.md.

    with JudgeProcess() as judges:
        judged = judges.judge(begin(candidate, task, chip), task, chip)

:mod:`.judge_process` is what callers have, :mod:`.judge_server` the process behind it, which alone needs torch.  There
:mod:`.judgement` says what happens in a judgement: :mod:`.cover` finds a plan for each of the :mod:`.sizes`,
:mod:`.examine` runs :mod:`.cases` of an :mod:`.executable` on the emulator (:mod:`.emulation`) and compares them with
what the :mod:`.oracle` expects (:mod:`.compare`); :mod:`.diagnose` says what is wrong.  :mod:`.composed` judges whole
targets.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .accuracy import LARGEST_FACTOR as LARGEST_FACTOR
    from .accuracy import RMS_FACTOR as RMS_FACTOR
    from .accuracy import Errors as Errors
    from .accuracy import Failure as Failure
    from .accuracy import summary as summary
    from .composed import judge_composed as judge_composed
    from .judge_process import JudgeProcess as JudgeProcess
    from .judgement import judge as judge
    from .oracle import Oracle as Oracle
    from .rejection import Rejected as Rejected
    from .rejection import defect as defect
    from .rejection import finished as finished
    from .sizes import ELEMENTS as ELEMENTS
    from .sizes import judged_sizes as judged_sizes
else:
    __getattr__, __all__ = exports(
        __name__,
        accuracy=["LARGEST_FACTOR", "RMS_FACTOR", "Errors", "Failure", "summary"],
        composed=["judge_composed"],
        judge_process=["JudgeProcess"],
        judgement=["judge"],
        oracle=["Oracle"],
        rejection=["Rejected", "defect", "finished"],
        sizes=["ELEMENTS", "judged_sizes"],
    )
