"""Opening a knowledge base: migrations, and every base that can't be opened as an error a person can act on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from knowledge_base.database import Database, url_of
from knowledge_base.errors import EXIT_ENVIRONMENT, EXIT_USAGE, EnvironmentLacks, UserError
from knowledge_base.migrations import HEAD


def test_head_is_the_newest_migration() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    import knowledge_base.migrations as migrations

    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_the_migrated_schema_is_the_tables(new_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from knowledge_base.tables import METADATA

    database = Database.open(new_url)

    def ours(name: str | None, kind: str, _parents: object) -> bool:
        return kind != "table" or not str(name).startswith(("texts", "words"))  # SQLite's index: text_index.py

    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": ours})
        assert compare_metadata(context, METADATA) == []
    database.close()


def test_a_migration_that_fails_leaves_the_old_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import knowledge_base.database as module

    def half(connection: object, *_: object) -> None:
        connection.exec_driver_sql("CREATE TABLE half (id INTEGER)")  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "_upgrade", half)
        with pytest.raises(KeyboardInterrupt):
            Database.open(str(tmp_path / "kb.db"))
    database = Database.open(str(tmp_path / "kb.db"))
    with database.read() as connection:
        names = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE name = 'half'").all()
        assert names == []
        assert database.revision(connection) == HEAD
    database.close()


def test_a_base_of_a_newer_schema_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "kb.db"
    database = Database.open(str(path))
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    with pytest.raises(EnvironmentLacks, match=r"newer tilewright \(schema 9999") as caught:
        Database.open(str(path))
    assert caught.value.exit_code == EXIT_ENVIRONMENT
    assert "Upgrade" in caught.value.mend


def not_writable(tmp_path: Path) -> str:
    (tmp_path / "file").write_text("")
    return str(tmp_path / "file" / "kb.db")


def damaged(tmp_path: Path) -> str:
    (tmp_path / "kb.db").write_bytes(b"this is no database, and long enough to be read as one" * 100)
    return str(tmp_path / "kb.db")


def of_something_else(tmp_path: Path) -> str:
    import sqlite3

    with sqlite3.connect(tmp_path / "kb.db") as connection:
        connection.execute("CREATE TABLE customers (id INTEGER)")
    return str(tmp_path / "kb.db")


@pytest.mark.parametrize(
    ("make", "says", "exit_code"),
    [
        (not_writable, "can't make the folder", EXIT_ENVIRONMENT),
        (lambda _: "/dev/null", "disk I/O error|unable to open|readonly", EXIT_ENVIRONMENT),
        (lambda _: "/proc/kb.db", "unable to open", EXIT_ENVIRONMENT),
        (damaged, "not a database", EXIT_ENVIRONMENT),
        (of_something_else, "something else", EXIT_USAGE),
        (lambda _: "nonsense://x", "nonsense", EXIT_USAGE),
        (lambda path: str(path / "q?x.db"), "a question mark ends the file's name", EXIT_USAGE),
        (lambda _: "sqlite:////dev/null/x/y", "can't make the folder", EXIT_ENVIRONMENT),
    ],
)
def test_a_base_that_cannot_be_used_is_a_clear_error(tmp_path: Path, make, says: str, exit_code: int) -> None:
    with pytest.raises(UserError, match=says) as caught:
        Database.open(make(tmp_path))
    assert caught.value.exit_code == exit_code
    assert caught.value.mend


def test_a_file_that_may_only_be_read_is_an_error_before_any_work(tmp_path: Path) -> None:
    path = tmp_path / "kb.db"
    Database.open(str(path)).close()
    uri = f"sqlite:///file:{path}?mode=ro&uri=true"
    with pytest.raises(EnvironmentLacks, match="readonly"):
        Database.open(uri)


def test_a_name_without_scheme_is_a_file() -> None:
    assert url_of(None) == "sqlite:///runs/knowledge.db"
    assert url_of("x.db") == "sqlite:///x.db"
    assert url_of("postgresql://host/x") == "postgresql://host/x"


def test_the_migrations_travel_with_the_package(tmp_path: Path) -> None:
    """A copy of the package elsewhere, as an installation makes, opens a base of its own."""
    import shutil

    root = Path(__file__).parents[2]
    for package in ("knowledge_base", "kernels_generated"):
        shutil.copytree(root / package, tmp_path / "site" / package, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import knowledge_base.database as d; d.Database.open('kb.db').close(); print(d.__file__)"
    search = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert str(tmp_path / "site") in done.stdout
    assert (tmp_path / "kb.db").stat().st_size > 0
