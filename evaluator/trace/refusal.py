"""Refusal: the candidate's ``launch`` asked for something that a launch plan cannot hold."""

from __future__ import annotations


class Refusal(AttributeError):
    """``error_class`` names the kind (kebab-case).  An AttributeError, so that ``hasattr`` answers."""

    def __init__(self, error_class: str, message: str, status: str = "invalid") -> None:
        super().__init__(message)
        self.error_class = error_class
        self.message = message
        self.status = status
