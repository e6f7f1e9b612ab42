"""What a language model is told about a task: :func:`write` fills the templates from a :class:`Briefing`.

Nothing is asked or judged here.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .briefing import Answer as Answer
    from .briefing import Briefing as Briefing
    from .change import CLOSE as CLOSE
    from .examples import tilegym as tilegym
    from .feedback import outcome as outcome
    from .feedback import said as said
    from .knowledge import TOKENS as TOKENS
    from .knowledge import fitting as fitting
    from .knowledge import worth_telling as worth_telling
    from .prompt import CHARACTERS_A_TOKEN as CHARACTERS_A_TOKEN
    from .prompt import LIMIT_TOKENS as LIMIT_TOKENS
    from .prompt import MOST_RULES as MOST_RULES
    from .prompt import Prompt as Prompt
    from .prompt import Section as Section
    from .prompt import axes_seen as axes_seen
    from .prompt import ops_of as ops_of
    from .prompt import write as write
else:
    __getattr__, __all__ = exports(
        __name__,
        briefing=["Answer", "Briefing"],
        change=["CLOSE"],
        examples=["tilegym"],
        feedback=["outcome", "said"],
        knowledge=["TOKENS", "fitting", "worth_telling"],
        prompt=[
            "CHARACTERS_A_TOKEN",
            "LIMIT_TOKENS",
            "MOST_RULES",
            "Prompt",
            "Section",
            "axes_seen",
            "ops_of",
            "write",
        ],
    )
