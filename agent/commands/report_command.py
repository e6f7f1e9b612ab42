"""``agent kb report``: the knowledge base on one page of HTML."""

from __future__ import annotations

from pathlib import Path

from agent.console import console, emit
from agent.files import no_base, write_at_once
from agent.overview import gather, html
from knowledge_base.errors import EXIT_DONE, EnvironmentLacks

from .kb import known_chip, known_op, reading, run_status

DEFAULT = "runs/knowledge.html"


def report(out: str | None, op: str, gpu: str, db: str | None, as_json: bool) -> int:
    """Writes the page and says where.  Raises UserError for an op or a chip that there is not."""
    file = no_base(Path(out or DEFAULT))
    with reading(db) as store:
        gathered = gather(store.database, op=known_op(op), gpu=known_chip(gpu))
    page = html(gathered | {"runs": [run | {"status": run_status(run)} for run in gathered["runs"]]})
    try:
        write_at_once(file, page)
    except OSError as error:
        raise EnvironmentLacks(f"{file} can't be written: {error.strerror}", "Name another file with --out.") from None
    if as_json:
        emit({"file": str(file)} | gathered)
    else:
        console().print(str(file), markup=False, soft_wrap=True)
    return EXIT_DONE
