"""A PostgreSQL server of this machine's own, started for tests on a socket in a folder that is deleted afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

_DEBIAN = "/usr/lib/postgresql"


class Lacking(Exception):
    """Why no server can be started here."""


class PostgreSQLServer:
    """Running; ``folder`` has its socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def url(self, database: str, user: str = "postgres") -> str:
        return f"postgresql+psycopg://{user}@/{database}?host={self.folder}"

    def new(self, options: str = "") -> str:
        """The URL of a new database that holds nothing.  ``options``: of CREATE DATABASE."""
        name = f"base_{uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} {options}")
        return self.url(name)

    def execute(self, statement: str, database: str = "postgres") -> None:
        import psycopg

        with psycopg.connect(host=str(self.folder), user="postgres", dbname=database, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]


@contextmanager
def postgresql_server() -> Iterator[PostgreSQLServer]:
    """A server while it is needed.  Raises Lacking, which says what it would take."""
    programs = _programs()
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # the path of a socket is short
    try:
        if user is not None:
            shutil.chown(folder, user)

        def call(*command: str) -> None:
            done = subprocess.run(command, user=user, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                raise Lacking(f"{command[0]}: {done.stdout.decode(errors='replace').strip()[-300:]}")

        data = str(folder / "data")
        trusting = ("--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8")
        call(str(programs / "initdb"), f"--pgdata={data}", *trusting)
        control = (str(programs / "pg_ctl"), f"--pgdata={data}", "--wait", f"--log={folder / 'log'}")
        call(*control, f"--options=-k {folder} -c listen_addresses='' -c fsync=off", "start")
        try:
            yield PostgreSQLServer(folder)
        finally:
            call(*control, "--mode=immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    installed = sorted(Path(_DEBIAN).glob("*/bin/initdb"))
    if not installed:
        raise Lacking("PostgreSQL's server is not installed (apt install postgresql)")
    return installed[-1].parent


def _user() -> str | None:
    """The user that the server runs as; None: whoever runs the tests.  It refuses to run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise Lacking("PostgreSQL's server does not run as root, and there is no user postgres")
