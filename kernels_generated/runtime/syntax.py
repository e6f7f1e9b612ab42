"""Python's syntax tree of a text, from any thread."""

from __future__ import annotations

import ast
import threading

_ONE = threading.Lock()


def parse(text: str, filename: str = "<text>") -> ast.Module:
    """As :func:`ast.parse`, with its exceptions.

    CPython counts the depth of a tree that it builds once for all threads: two that build trees at the same time can
    make each other fail with ``SystemError: AST constructor recursion depth mismatch`` (python/cpython#106905).
    """
    with _ONE:
        return ast.parse(text, filename)
