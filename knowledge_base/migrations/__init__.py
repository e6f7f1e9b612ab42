"""The schema's history, run on open (:mod:`knowledge_base.database`).  Ships inside the package.

HEAD is the newest revision, written down so that opening a current base need not import Alembic; a test compares.
"""

HEAD = "0009"
