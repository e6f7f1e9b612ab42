"""``agent kb serve``: the knowledge base in a browser, by Datasette: tables, SQL, and the questions that people ask."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from knowledge_base.errors import EXIT_DONE, EXIT_ENVIRONMENT, EnvironmentLacks, UserError

from .kb import file_of, reading

# Title, SQL.  A parameter :name becomes a field to fill in.
QUERIES: dict[str, tuple[str, str]] = {
    "best_kernels": (
        "Winners, best first within a task, a chip and a shape",
        """SELECT tasks.name AS task, trials.chip, trials.shape, trials.us, trials.kind, trials.status, tasks.dtype,
  json_extract(trials.record, '$.configuration') AS configuration, candidates.digest AS kernel, winners.run_id AS run
FROM winners JOIN trials ON trials.key = winners.trial JOIN tasks ON tasks.key = trials.task
  JOIN candidates ON candidates.key = trials.candidate
ORDER BY tasks.name, trials.chip, trials.shape, trials.status = 'foreign', trials.kind, trials.us""",
    ),
    "fastest_configurations": (
        "The fastest configurations of a task (its name) on a chip, with what the assembler made of them",
        """SELECT trials.us, trials.kind, trials.status, trials.shape,
  json_extract(trials.record, '$.configuration') AS configuration,
  json_extract(trials.record, '$.evidence[0].spill_bytes') AS spill_bytes,
  json_extract(trials.record, '$.evidence[0].registers') AS registers,
  json_extract(trials.record, '$.evidence[0].mma') AS mma, json_extract(trials.record, '$.evidence[0].tma') AS tma
FROM trials WHERE trials.task IN (SELECT key FROM tasks WHERE name = :task) AND trials.chip = :chip
  AND trials.standing IN ('ranked', 'spills')
ORDER BY trials.shape, trials.kind, trials.us LIMIT 100""",
    ),
    "what_became_of_trials": (
        "How many trials of each task there are on each chip, by what became of them",
        """SELECT tasks.name AS task, tallies.chip, tallies.standing, tallies.status, sum(tallies.trials) AS trials
FROM tallies JOIN tasks ON tasks.key = tallies.task WHERE tallies.trials > 0
GROUP BY tasks.name, tallies.chip, tallies.standing, tallies.status ORDER BY tasks.name, tallies.chip, trials DESC""",
    ),
    "rules_by_effect": (
        "Rules by how much they change a time, best against best: the logarithm of the ratio, with its 95% interval",
        """SELECT status, statement, round(effect, 3) AS effect, round(effect_low, 3) AS low,
  round(effect_high, 3) AS high, source
FROM rules WHERE effect IS NOT NULL ORDER BY abs(effect) DESC""",
    ),
    "words": (
        "Whatever has these words",
        """SELECT texts.kind, texts.thing AS id, snippet(words, 0, '→', '←', '…', 24) AS text
FROM words JOIN texts ON texts.id = words.rowid
WHERE words MATCH '"' || replace(:words, '"', '""') || '"' ORDER BY rank LIMIT 100""",
    ),
    "attempts_of_a_run": (
        "What a run (its id) tried, in its order",
        """SELECT attempts.id, attempts.move, tasks.name AS task, trials.status, trials.us, trials.kind,
  json_extract(trials.record, '$.configuration') AS configuration,
  json_extract(trials.record, '$.verdict.message') AS message
FROM attempts JOIN trials ON trials.key = attempts.trial JOIN tasks ON tasks.key = trials.task
WHERE attempts.run_id = :run ORDER BY attempts.id""",
    ),
    "what_models_cost": (
        "Calls of language models: tokens, dollars, and how often they brought what was asked for",
        """SELECT model, move, status, count(*) AS calls, sum(tokens_in) AS tokens_in, sum(tokens_out) AS tokens_out,
  round(sum(cost_usd), 4) AS dollars, sum(paid) AS paid
FROM llm_calls GROUP BY model, move, status ORDER BY calls DESC""",
    ),
}


def serve(host: str, port: int, db: str | None) -> int:
    """Serves the base until it is interrupted.  Raises UserError for a base that is not SQLite's."""
    if file_of(db) is None:
        raise UserError("Datasette serves SQLite bases alone", "Name a file with --db; `agent kb report` serves any.")
    if importlib.util.find_spec("datasette") is None:
        raise EnvironmentLacks("agent kb serve needs Datasette", "pip install datasette")
    with reading(db) as store, tempfile.TemporaryDirectory() as folder:
        file = Path(str(store.database.engine.url.database))
        metadata = Path(folder) / "metadata.json"
        metadata.write_text(json.dumps(_metadata(file.stem)))
        command = [sys.executable, "-m", "datasette", "serve", str(file), "--metadata", str(metadata)]
        # A base is opened for reading alone.  Whoever may see it may ask it anything, but not for ever.
        limits = ["--setting", "sql_time_limit_ms", "5000", "--setting", "allow_download", "off"]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the server ends with us
        server = subprocess.Popen([*command, *limits, "--host", host, "--port", str(port)])
        try:
            code = server.wait()
        finally:  # Ctrl-C in a terminal has told it already
            server.terminate()
            server.wait()
    return EXIT_DONE if code == 0 else EXIT_ENVIRONMENT


def _metadata(name: str) -> dict[str, Any]:
    """Datasette's metadata of the base: what the tables are, and the questions."""
    asked = {key: {"title": title, "sql": sql} for key, (title, sql) in QUERIES.items()}
    return {"title": "tilewright: the knowledge base", "databases": {name: {"queries": asked}}}
