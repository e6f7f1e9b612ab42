"""What can go wrong while a candidate's file runs: the closed list of failures, and the exception for most of them.

The child says which of these it was; the parent knows what each means, and takes no other word for one.  None of them
is a success: that a candidate is correct is for the judge alone to say.
"""

from __future__ import annotations

# Error classes by the status that they have.
_STATUSES = {
    "invalid": (
        "import-raised", "launch-raised", "forbidden-import", "exited", "too-deep", "missing-launch", "outside-launch",
        "wrong-device", "torch-compute", "list-argument", "argument-count", "scalar-overflow", "index-overflow",
        "stale-size", "stale-array", "too-many-guards", "expression-too-large", "bad-view", "too-many-views",
        "too-many-workspaces", "bad-workspace", "workspace-too-large", "launch-option", "grid-rank", "grid-range",
        "too-many-blocks", "too-many-launches", "launches-nothing", "output-unused", "launch-changes", "bad-packing",
    ),
    "build-error": ("front-end",),
    "infeasible": ("infeasible",),
    "crash": ("memory-limit",),
}  # fmt: skip
FAILURES = {error_class: status for status, classes in _STATUSES.items() for error_class in classes}


class Refusal(AttributeError):
    """The candidate's ``launch`` asked for something that a launch plan cannot hold.

    ``error_class`` is one of FAILURES.  An AttributeError, so that ``hasattr`` answers.
    """

    def __init__(self, error_class: str, message: str) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.message = message
