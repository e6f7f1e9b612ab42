"""A base on a PostgreSQL server answers as one in a file does, and says what is wrong with a server."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgresql_server import PostgreSQLServer
from sqlalchemy import select

from knowledge_base import browse
from knowledge_base import database as opening
from knowledge_base.database import Database, without_password
from knowledge_base.errors import EnvironmentLacks, UserError
from knowledge_base.records import Answered, Candidate, LlmCall, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.rules import own, review
from knowledge_base.sharing import give, take
from knowledge_base.snf import everyday
from knowledge_base.store import RunRecord, Store
from knowledge_base.tables import BASES, META, METADATA

pytestmark = pytest.mark.usefixtures("copied_bases")

GELU, LINEAR = everyday("gelu"), everyday("linear_gelu")
FIRST = Candidate(source="AXES = {}\n# Größe\n", task=GELU.identity, proposer="openai", note="plain", prompt="ab" * 32)
SECOND = Candidate(source="AXES = {}\n# persistent\n", task=GELU.identity, parent=FIRST.digest)
RIGHT = Verdict(status=Status.CORRECT, stage=Stage.DONE, numbers={"normal": {"y": {"rms_ratio": float("nan")}}})
WRONG = Verdict(status=Status.WRONG, stage=Stage.COMPARE, error_class="tail", message="the tail's mask is wrong")
RUN = "20261130-120000-gelu-ab12"


def trial(tm: int, us: float | None, verdict: Verdict | None = None, of: Candidate = SECOND, **changes: Any) -> Trial:
    time = Measurement(kind="measured", chip="h200", us=us or 0.0, floor_us=2.0)
    whole = Trial(
        candidate=of, configuration={"TM": tm}, chip="h200", shape={"M": 64, "N": 32}, evaluator="v1",
        verdict=verdict, measurements=(time,) if us is not None else (), plans=("cd" * 32,),
    )  # fmt: skip
    return whole.fuller(**changes)


def filled(store: Store) -> Store:
    """The store with something of every kind in it."""
    store.record_tasks([GELU, LINEAR])
    store.start_run(RunRecord(RUN, "gelu", "h200", "cuda", "openai", "running", options={"seed": 1}))
    some = [trial(8, 9.0, WRONG, FIRST), trial(1, 5.0, RIGHT), trial(2, 6.0), trial(4, None, pruned="too slow")]
    for one in some:
        store.record([one], run=RUN, move="fresh", artifacts={"k": b"\x00\xff"})
    store.record([trial(2, 6.0, RIGHT)], run=RUN, move="final")  # fuller
    store.record_winner(RUN, some[1], "winners/gelu")
    messages = {"model": "m", "messages": [{"role": "user", "content": "write it"}]}
    of = {"run": RUN, "task": GELU.identity, "shape": GELU.sizes, "number": 1, "model": "m", "endpoint": "e"}
    said = {"text": "an answer with a mask", "status": Answered.ANSWERED, "candidate": FIRST.digest}
    store.record_call(LlmCall(**of, request=messages, tokens_in=10, tokens_out=20, cost_usd=0.01, **said))
    store.finish_run(RUN, "done", 0, {"tasks": 1})
    return store


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "kb.db")) as store:
        yield filled(store)


@pytest.fixture
def served(postgresql: PostgreSQLServer) -> Iterator[Store]:
    with Store.open(postgresql.new()) as store:
        yield filled(store)


MADE = re.compile(r"'(\w+_at|at|pid|key)': '?[\w:.-]+'?")  # when rows were stored, and which base it is


def asked(store: Store) -> dict[str, Any]:
    """What browsing and the loop are told, whenever the rows were stored."""
    base = store.database
    told = {
        "facts": browse.facts(base, gpu="h200"),
        "rules": browse.rules(base, op="linear"),
        "runs": browse.runs(base),
        "attempts": browse.attempts(base),
        "attempts of a status": browse.attempts(base, op="gelu", gpu="h200", status="wrong"),
        "attempts of a run": browse.attempts(base, run=RUN[:12]),
        "calls": browse.calls(base, run=RUN),
        "kernels": browse.kernels(base),
        "tasks": browse.tasks(base, gpu="h200"),
        "curves": browse.curves(base, RUN),
        "words": sorted((row["is"], row["id"]) for row in browse.search(base, ["mask"])),
        "a phrase": sorted((row["is"], row["id"]) for row in browse.search(base, ["Größe"])),
        "best": store.best(GELU.identity, "h200"),
        "best elsewhere": store.best(GELU.identity, "b200"),
        "best of the run": store.best(GELU.identity, "h200", run=RUN),
        "best at": store.best_at(GELU.identity, "h200", {"M": 64, "N": 32}),
        "of a candidate": store.of_candidate(GELU.identity, SECOND.digest, "h200", {"M": 64, "N": 32}, "v1"),
        "fastest": store.fastest(GELU.identity, "h200"),
        "answers": store.answers([GELU.identity], limit=9),
        "known tasks": sorted(store.known_tasks()),
        "model's calls": store.calls(RUN),
        "measured": list(own(base)),
        "artifacts": store.artifacts(["k"]),
    }
    for what in (RUN, "gelu", "h200", FIRST.digest[:12], trial(1, 5.0).key[:9], browse.rules(base)[0]["key"]):
        told[f"show {what}"] = browse.show(base, what)
    return {what: MADE.sub(r"'\1'", repr(answer)) for what, answer in told.items()}


def test_both_answer_alike(file: Store, served: Store) -> None:
    ours, theirs = asked(file), asked(served)
    assert {what: (ours[what], theirs[what]) for what in ours if ours[what] != theirs[what]} == {}


def test_both_mine_alike(file: Store, served: Store) -> None:
    lessons = [[change.key for change in review(store.database, (), "nothing")] for store in (file, served)]
    assert lessons[0] == lessons[1]


def test_what_one_exports_the_other_imports(file: Store, served: Store, tmp_path: Path) -> None:
    for store, base in ((file, "aa" * 8), (served, "bb" * 8)):
        with store.database.write() as connection:
            connection.execute(BASES.update().values(key=base))
        store.record([trial(16, 3.0 if base < "b" else 4.0, RIGHT)], run=RUN)
        give(store.database, tmp_path / f"{base}.jsonl")
    for _ in range(2):
        take(file.database, tmp_path / f"{'bb' * 8}.jsonl")
        take(served.database, tmp_path / f"{'aa' * 8}.jsonl")
    assert len(browse.attempts(file.database, status="foreign")) == 1  # the others are the same here and there
    (theirs,) = browse.attempts(served.database, status="foreign")
    assert (theirs["us"], theirs["origin"]) == (3.0, "aa" * 8)
    (task,) = browse.tasks(served.database, op="gelu", gpu="h200")
    assert (task["trials"], task["foreign"]) == (5, 1)
    assert len(list(own(served.database, foreign=True))) == len(list(own(served.database))) + 1


def test_a_base_that_is_there_is_opened_as_it_is(served: Store, postgresql: PostgreSQLServer) -> None:
    rows = browse.attempts(served.database)
    with Store.open(served.database.url) as again:
        assert browse.attempts(again.database) == rows
    with served.database.read() as connection:
        assert Database.revision(connection) == opening.HEAD
        assert {*METADATA.tables} == set(tables(connection)) - {"alembic_version"}  # no index of words


def tables(connection: Any) -> list[str]:
    statement = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    return [name for (name,) in connection.exec_driver_sql(statement)]


def test_a_file_that_holds_a_nul_is_kept(served: Store) -> None:
    served.record_candidate(made := Candidate(source="AXES = {}\0", task=GELU.identity, note="a\0b"))
    shown = browse.show(served.database, made.digest)
    assert (shown["source"], shown["note"]) == ("AXES = {}\\x00", "a\\x00b")


def test_readers_see_the_base_as_it_was_when_they_began(served: Store) -> None:
    with served.database.read() as connection:
        before = connection.execute(select(META)).all()
        with served.database.write() as writing:
            writing.execute(META.insert().values(name="new", value="1"))
        assert connection.execute(select(META)).all() == before
    with served.database.read() as connection:
        assert len(connection.execute(select(META)).all()) == len(before) + 1


def test_writers_take_turns(served: Store) -> None:
    """Each adds one to what it reads: whoever came between would be forgotten."""
    with served.database.write() as connection:
        connection.execute(META.insert().values(name="count", value="0"))

    def add() -> None:
        for _ in range(20):
            with served.database.write() as connection:
                (value,) = connection.execute(select(META.c.value).where(META.c.name == "count")).one()
                connection.execute(META.update().where(META.c.name == "count").values(value=str(int(value) + 1)))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with served.database.read() as connection:
        assert connection.execute(select(META.c.value).where(META.c.name == "count")).scalar() == "80"


def test_a_writer_that_another_one_holds_up_says_so(served: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "BUSY_MS", 200)
    with Store.open(served.database.url) as other, served.database.write():  # noqa: SIM117
        with pytest.raises(EnvironmentLacks, match="lock timeout"), other.database.write():
            pass


@pytest.mark.parametrize("locale", ["C.UTF-8", "und", "en-US"])
def test_ids_are_found_by_their_beginning_however_texts_are_sorted(postgresql: PostgreSQLServer, locale: str) -> None:
    provider = "LOCALE" if locale == "C.UTF-8" else "LOCALE_PROVIDER icu ICU_LOCALE"
    with Store.open(postgresql.new(f"TEMPLATE template0 {provider} '{locale}'")) as store:
        filled(store)
        assert browse.show(store.database, SECOND.digest[:10])["kernel"] == SECOND.digest
        assert browse.show(store.database, RUN[:17])["id"] == RUN
        assert len(browse.attempts(store.database, run=RUN[:17])) == 4


# ---------------------------------------------------------------------------------------------------- what goes wrong


def test_a_database_that_is_not_there(postgresql: PostgreSQLServer) -> None:
    with pytest.raises(EnvironmentLacks, match='database "nowhere" does not exist') as told:
        Store.open(postgresql.url("nowhere"))
    assert "createdb" in told.value.mend


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacks, match=r"The knowledge base .* does not answer: .*No such file") as told:
        Store.open(f"postgresql+psycopg://me:hunter2@/base?host={tmp_path}")
    assert "hunter2" not in str(told.value)
    with pytest.raises(EnvironmentLacks, match=r"[Cc]onnection refused") as told:
        Store.open("postgresql://me:hunter2@127.0.0.1:1/base")
    assert "hunter2" not in str(told.value)
    assert "Check host and port" in told.value.mend


def test_a_user_who_may_not_write(served: Store, postgresql: PostgreSQLServer) -> None:
    name = served.database.engine.url.database
    assert name is not None
    postgresql.execute("DROP ROLE IF EXISTS reader")
    postgresql.execute("CREATE ROLE reader LOGIN")
    postgresql.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader", name)
    try:
        with pytest.raises(EnvironmentLacks, match="permission denied") as told:
            Store.open(postgresql.url(name, "reader"))
        assert "may not write" in told.value.mend
    finally:
        postgresql.execute("DROP OWNED BY reader", name)


def test_a_database_of_something_else(postgresql: PostgreSQLServer) -> None:
    url = postgresql.new()
    postgresql.execute("CREATE TABLE customers (id int)", url.split("/")[3].split("?")[0])
    with pytest.raises(UserError, match="a database of something else"):
        Store.open(url)


def test_a_server_that_went_away_is_asked_again(served: Store, postgresql: PostgreSQLServer) -> None:
    with served.database.read() as connection:
        connection.execute(select(META)).all()
    postgresql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    assert browse.tasks(served.database)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentLacks) as told:
        Store.open("postgresql+asyncpg://me:hunter2@host/base")
    assert "hunter2" not in str(told.value)
    assert told.value.mend == "pip install 'asyncpg'"


def test_a_url_that_makes_no_sense() -> None:
    with pytest.raises(UserError) as told:
        Store.open("postgresql://me:hunter2@host:port/base")
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///runs/a@b.db", "sqlite:///runs/a@b.db"),
        ("postgresql://me@host/x", "postgresql://me@host/x"),
        ("postgresql://me:p%40ss@host:5432/x", "postgresql://me:***@host:5432/x"),
        ("postgresql+psycopg://:secret@/x?host=/tmp", "postgresql+psycopg://:***@/x?host=/tmp"),
    ],
)
def test_a_password_is_not_shown(url: str, said: str) -> None:
    assert without_password(url) == said
