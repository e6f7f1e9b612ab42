"""What mining finds in the landscapes that ship, as lines of JSON.

``python -m knowledge_base.rules > knowledge_base/seed/mined.jsonl`` after the landscapes or the mining have changed.
"""

from __future__ import annotations

from . import in_spaces, mine, shipped

if __name__ == "__main__":
    for rule in mine(in_spaces(shipped())):
        print(rule.model_dump_json(exclude_defaults=True))
