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
    from .accuracy import Case as Case
    from .accuracy import Errors as Errors
    from .accuracy import Failure as Failure
    from .accuracy import summary as summary
    from .admission import POISON_A as POISON_A
    from .admission import Poison as Poison
    from .admission import admit as admit
    from .admission import poison_of as poison_of
    from .cases import adds_in_any_order as adds_in_any_order
    from .compare import measure as measure
    from .composed import judge_composed as judge_composed
    from .cover import dims as dims
    from .cover import text as text
    from .examine import Examination as Examination
    from .examine import accept as accept
    from .examine import wrong as wrong
    from .executable import Executable as Executable
    from .executable import same_bits as same_bits
    from .inputs import torch_dtype as torch_dtype
    from .judge_process import JudgeProcess as JudgeProcess
    from .judgement import judge as judge
    from .oracle import Expected as Expected
    from .oracle import Oracle as Oracle
    from .oracle import Packed as Packed
    from .oracle import Question as Question
    from .oracle import pack as pack
    from .oracle import question as question
    from .oracle_worker import computed as computed
    from .rejection import Rejected as Rejected
    from .rejection import defect as defect
    from .rejection import finished as finished
    from .rejection import reject as reject
    from .sizes import ELEMENTS as ELEMENTS
    from .sizes import Sizes as Sizes
    from .sizes import judged_sizes as judged_sizes
else:
    __getattr__, __all__ = exports(
        __name__,
        accuracy=["Case", "Errors", "Failure", "LARGEST_FACTOR", "RMS_FACTOR", "summary"],
        admission=["POISON_A", "Poison", "admit", "poison_of"],
        cases=["adds_in_any_order"],
        compare=["measure"],
        composed=["judge_composed"],
        cover=["dims", "text"],
        examine=["Examination", "accept", "wrong"],
        executable=["Executable", "same_bits"],
        inputs=["torch_dtype"],
        judge_process=["JudgeProcess"],
        judgement=["judge"],
        oracle=["Expected", "Oracle", "Packed", "Question", "pack", "question"],
        oracle_worker=["computed"],
        rejection=["Rejected", "defect", "finished", "reject"],
        sizes=["ELEMENTS", "Sizes", "judged_sizes"],
    )
