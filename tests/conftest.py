"""Hypothesis profiles, where tests marked ``gpu`` run, the judge and its oracle, and knowledge bases to copy.

``pytest --hypothesis-profile=thorough`` draws many more examples than a working day's run.
"""

import contextlib
import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import settings
from postgresql_server import Lacking, PostgreSQLServer, postgresql_server

from evaluator.judging import JudgeProcess, Oracle
from knowledge_base.chips import from_driver
from knowledge_base.database import Database
from knowledge_base.errors import UserError
from knowledge_base.store import Store

settings.register_profile("thorough", max_examples=200, deadline=None)

# Thousands of tests are a million objects, and each look at all of them takes half a second: a tenth of the suite.
gc.set_threshold(100_000, 20, 20)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs a GPU where there is none, and says why."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    try:
        from_driver()
    except UserError as error:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {error.what}"))


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """What the judge holds results against, started: it imports torch once, and starts again where a test ends it."""
    with Oracle() as started:
        yield started


@pytest.fixture(scope="session")
def judges() -> Iterator[JudgeProcess]:
    """A process that judges, for tests that change nothing of it: each judgement is a fork."""
    with JudgeProcess() as started:
        yield started


@pytest.fixture(scope="session")
def new_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A knowledge base as a first run makes it."""
    file = tmp_path_factory.mktemp("base") / "knowledge.db"
    Store.open(str(file)).close()
    return file


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    """A PostgreSQL server; skips where there can be none."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(postgresql_server())
        except Lacking as error:
            pytest.skip(f"needs PostgreSQL: {error}")
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where there is no base yet: a file, and a database of PostgreSQL."""
    if request.param == "sqlite":
        return str(tmp_path / "kb.db")
    server: PostgreSQLServer = request.getfixturevalue("postgresql")
    return server.new()


@pytest.fixture
def copied_bases(new_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no base yet one is copied: how it is made, migration by migration, is tests/knowledge_base's."""
    migrate = Database._migrate

    def migrated(database: Database) -> None:
        _, slashes, file = database.url.partition("sqlite:///")
        if slashes and file.endswith(".db") and Path(file).parent.is_dir() and not Path(file).exists():
            copy = Path(f"{file}.{uuid4().hex}")
            shutil.copyfile(new_base, copy)
            with contextlib.suppress(FileExistsError):  # another thread's copy came first
                os.link(copy, file)
            copy.unlink()
        migrate(database)

    monkeypatch.setattr(Database, "_migrate", migrated)
