"""What is known: the SNF language (:mod:`.snf`), chips, records that everybody shares, the base that keeps them."""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .chips import CHIPS as CHIPS
    from .chips import Chip as Chip
    from .chips import chip as chip
    from .database import Database as Database
    from .errors import EnvironmentLacks as EnvironmentLacks
    from .errors import UserError as UserError
    from .records import Candidate as Candidate
    from .records import Finding as Finding
    from .records import Level as Level
    from .records import Measurement as Measurement
    from .records import Stage as Stage
    from .records import Status as Status
    from .records import Trial as Trial
    from .records import Verdict as Verdict
    from .store import RunRecord as RunRecord
    from .store import Store as Store
else:
    __getattr__, __all__ = exports(
        __name__,
        browse=[],
        chips=["CHIPS", "Chip", "chip"],
        database=["Database"],
        errors=["EnvironmentLacks", "UserError"],
        records=["Candidate", "Finding", "Level", "Measurement", "Stage", "Status", "Trial", "Verdict"],
        store=["RunRecord", "Store"],
    )
