"""Rules: what is believed of configurations, the evidence for and against it, and how both are mined from times."""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .claims import MOST_CONDITIONS as MOST_CONDITIONS
    from .claims import Claim as Claim
    from .claims import claim as claim
    from .claims import read_claim as read_claim
    from .effects import FEW_PAIRS as FEW_PAIRS
    from .form import Condition as Condition
    from .form import RuleForm as RuleForm
    from .form import Scope as Scope
    from .form import form_of as form_of
    from .form import known_as as known_as
    from .form import read_form as read_form
    from .keeping import SHIPPED as SHIPPED
    from .keeping import Change as Change
    from .keeping import Lesson as Lesson
    from .keeping import claimed as claimed
    from .keeping import insert as insert
    from .keeping import key_of as key_of
    from .keeping import learn as learn
    from .keeping import review as review
    from .mined import Direction as Direction
    from .mined import Mined as Mined
    from .mining import judged as judged
    from .mining import mine as mine
    from .mining import to_refute as to_refute
    from .rows import own as own
    from .rows import shipped as shipped
    from .spaces import Space as Space
    from .spaces import Timed as Timed
    from .spaces import in_spaces as in_spaces
    from .structure import STRUCTURES as STRUCTURES
    from .structure import features as features
else:
    __getattr__, __all__ = exports(
        __name__,
        claims=["MOST_CONDITIONS", "Claim", "claim", "read_claim"],
        effects=["FEW_PAIRS"],
        form=["Condition", "RuleForm", "Scope", "form_of", "known_as", "read_form"],
        keeping=["SHIPPED", "Change", "Lesson", "claimed", "insert", "key_of", "learn", "review"],
        mined=["Direction", "Mined"],
        mining=["judged", "mine", "to_refute"],
        rows=["own", "shipped"],
        spaces=["Space", "Timed", "in_spaces"],
        structure=["STRUCTURES", "features"],
    )
