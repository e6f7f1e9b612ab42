"""Opening a knowledge base: the engine, its transactions, migrations on open, and errors a person can act on.

It knows no table but Alembic's version and the index of words; what is stored is :mod:`knowledge_base.store`'s
business.
Writers take turns, and wait for each other instead of failing; their transactions are short.  On SQLite (in WAL mode,
with a busy timeout) a writer begins with BEGIN IMMEDIATE, on PostgreSQL with an advisory lock.  Readers see the base as
it was when they began.  Alembic takes a quarter of a second to import, so it is imported only if the schema is not
already the newest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowledge_base.content import readable
from knowledge_base.errors import EnvironmentLacks, UserError
from knowledge_base.migrations import HEAD
from knowledge_base.records import clean

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.exc import DBAPIError

DEFAULT = "runs/knowledge.db"
BUSY_MS = 30_000  # how long a writer waits for another one; a transaction here takes milliseconds
WRITERS = 0x74696C65  # PostgreSQL's advisory lock that a base's writers take turns at
POSTGRESQL = "postgresql"
CONNECT_S = 10  # for a server to answer
_FALLBACK = "Choose another place with --db, for example --db sqlite:////tmp/knowledge.db."

# What a database says → what a person can do.  The first pattern that is found decides.
_ADVICE = (
    ("readonly database", "The database or its folder can't be written. " + _FALLBACK),
    ("unable to open database file", "Its folder does not exist or can't be written. " + _FALLBACK),
    ("disk i/o error", "The disk refuses reads or writes. " + _FALLBACK),
    ("disk is full", "Free some space (nothing that is recorded is lost), or choose another place with --db."),
    ("not a database", "The file is no SQLite database, or is damaged. Move it away, or name another one with --db."),
    ("no such module: fts5", "Python's SQLite was built without FTS5, which this base has an index by. Use another."),
    ("malformed", "The file is damaged. Move it away, or mend it: sqlite3 FILE .recover | sqlite3 NEW"),
    ("database is locked", f"Another program held it for {BUSY_MS // 1000} s. End that one, then try again."),
    ("lock timeout", f"Another program held it for {BUSY_MS // 1000} s. End that one, then try again."),
    ("permission denied", "Its user may not write there. Name another one in the URL of --db."),
    (r'database ".*" does not exist', "Make the database first: createdb NAME. The tables come by themselves."),
    ("authentication failed", "Check the user and the password: postgresql://USER:PASSWORD@HOST/NAME, or ~/.pgpass."),
    ("no password supplied", "Give a password: postgresql://USER:PASSWORD@HOST/NAME, or in ~/.pgpass."),
    ("connection refused", "No server listens there. Check host and port: postgresql://USER@HOST:PORT/NAME."),
    ("failed to resolve host", "Check the host: postgresql://USER@HOST/NAME."),
)


def url_of(text: str | None) -> str:
    """The SQLAlchemy URL that ``--db`` means: nothing, a path, or a URL.  Raises UserError for what is no path."""
    text = text or DEFAULT
    if "://" in text:
        return text
    if "?" in text:
        raise UserError(f"--db {text}: in a URL, a question mark ends the file's name", "Choose a name without one.")
    return f"sqlite:///{text}"


def without_password(url: str) -> str:
    """A URL as it may be shown: without its password."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


class Database:
    """An engine and its two kinds of transaction.  ``url`` is to be shown: it lacks the password."""

    def __init__(self, url: str, engine: Engine) -> None:
        self.url = without_password(url)
        self.engine = engine
        self._reading = engine
        if engine.dialect.name == POSTGRESQL:
            self._reading = engine.execution_options(isolation_level="REPEATABLE READ")

    @classmethod
    def open(cls, url: str | None = None) -> Database:
        """Opens, creates and migrates.  Raises EnvironmentLacks or UserError before anything is half done."""
        url = url_of(url)
        database = cls(url, _engine(url))
        try:
            database._migrate()
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction: a snapshot."""
        with self._translated(), self._reading.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction: all of it or nothing.  Keep it short: other runs wait."""
        with self._translated(), self.engine.connect() as raw, raw.execution_options(writes=True).begin():
            yield raw

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            mended = _user_error(self.url, error)
            if mended is None:
                raise
            raise mended from None

    def _migrate(self) -> None:
        """Brings the schema to HEAD in one transaction, so that a kill leaves the old schema or the new one."""
        from sqlalchemy import inspect, text

        with self.read() as connection:
            if self.revision(connection) == HEAD and self._writable():
                return
        from knowledge_base.text_index import install

        with self.write() as connection:
            found = self.revision(connection)  # again: another process may have migrated while we waited
            if found == HEAD:
                return
            if found is None and (tables := inspect(connection).get_table_names()) and set(tables) != {_VERSIONS}:
                raise UserError(
                    f"{self.url} is a database of something else (its tables: {', '.join(sorted(tables)[:4])} …)",
                    "Name another one with --db.",
                )
            _upgrade(connection, found, self.url)
            install(connection)
            if connection.execute(text(f"SELECT version_num FROM {_VERSIONS}")).scalar() != HEAD:
                raise RuntimeError("migrations.HEAD is not the newest migration")

    def _writable(self) -> bool:
        """Writes something and takes it back; raises EnvironmentLacks where nothing can be written."""
        from sqlalchemy import text

        with self.write() as connection:
            connection.execute(text(f"UPDATE {_VERSIONS} SET version_num = version_num"))
            connection.rollback()
            return True

    @staticmethod
    def revision(connection: Connection) -> str | None:
        """The schema's revision; None where there is no schema yet."""
        from sqlalchemy import inspect, text

        if not inspect(connection).has_table(_VERSIONS):
            return None
        revision = connection.execute(text(f"SELECT version_num FROM {_VERSIONS}")).scalar()
        return None if revision is None else str(revision)


_VERSIONS = "alembic_version"


def _engine(url: str) -> Engine:
    from sqlalchemy import create_engine, event
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    from sqlalchemy.pool import QueuePool

    try:
        parsed = make_url(url)
        options: dict[str, Any] = {}
        if parsed.drivername.startswith("sqlite"):
            options["connect_args"] = {"timeout": BUSY_MS / 1000}
        if parsed.drivername.startswith("sqlite") and parsed.database in (None, "", ":memory:"):
            # One connection is one base: all threads take turns at it.
            options |= {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
            options["connect_args"]["check_same_thread"] = False
        if parsed.get_backend_name() == POSTGRESQL:
            options["pool_pre_ping"] = True  # a server may have been started anew
            if parsed.get_driver_name().startswith("psycopg") and "connect_timeout" not in parsed.query:
                options["connect_args"] = {"connect_timeout": CONNECT_S}
        engine = create_engine(parsed, **options)
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        mend = "Give a file, or an SQLAlchemy URL: sqlite:///runs/x.db, postgresql://USER@HOST/NAME."
        raise UserError(f"--db {without_password(url)}: {without_password(str(error))}", mend) from None
    except ImportError as error:  # the driver's; psycopg alone lacks libpq where the system has none
        name = "psycopg[binary]" if "psycopg" in (error.name or str(error)) or "pq" in str(error) else error.name
        raise EnvironmentLacks(
            f"--db {without_password(url)} needs a driver: {error}", f"pip install '{name}'"
        ) from None

    nul = "\\x00" if engine.dialect.name == POSTGRESQL else "\0"  # whose texts can't have the character

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def _readable(_c: Any, _cursor: Any, statement: str, given: Any, _context: Any, _many: bool) -> tuple[str, Any]:
        return statement, _spelled(given, nul)

    if engine.dialect.name == POSTGRESQL:

        @event.listens_for(engine, "begin")
        def _take_turns(connection: Connection) -> None:
            if connection.get_execution_options().get("writes", False):
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {BUSY_MS}")
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITERS})")

    if not parsed.drivername.startswith("sqlite"):
        return engine
    _make_folder(url, parsed.database)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we begin transactions ourselves, so that DDL is transactional too
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = NORMAL")  # in WAL mode a killed process loses nothing that was committed
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _spelled(given: Any, nul: str) -> Any:
    """A statement's parameters with readable texts: a name that someone typed may hold bytes that are no UTF-8.

    nul: what stands for the character NUL.
    """
    if isinstance(given, str):
        return readable(given).replace("\0", nul)
    if isinstance(given, dict):
        return {name: _spelled(value, nul) for name, value in given.items()}
    return type(given)(_spelled(value, nul) for value in given) if isinstance(given, list | tuple) else given


def _make_folder(url: str, file: str | None) -> None:
    if not file or file == ":memory:" or file.startswith("file:"):
        return
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentLacks(
            f"{url}: can't make the folder {Path(file).parent}: {error.strerror}", _FALLBACK
        ) from None


def _user_error(url: str, error: DBAPIError) -> UserError | None:
    said = clean(str(error.orig))
    for sign, advice in _ADVICE:
        if re.search(sign, said.lower()):
            return EnvironmentLacks(f"The knowledge base {url}: {said}", advice)
    if error.connection_invalidated or type(error.orig).__name__ in ("InterfaceError", "OperationalError"):
        return EnvironmentLacks(f"The knowledge base {url} does not answer: {said}", _FALLBACK)
    return None


def _upgrade(connection: Connection, found: str | None, url: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    if found is not None:
        try:
            ScriptDirectory.from_config(config).get_revision(found)
        except CommandError:
            raise EnvironmentLacks(
                f"The knowledge base {url} was written by a newer tilewright (schema {found}, this one knows {HEAD})",
                "Upgrade tilewright, or name another database with --db.",
            ) from None
    command.upgrade(config, "head")
