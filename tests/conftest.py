"""Hypothesis profiles, and where tests marked ``gpu`` run.

``pytest --hypothesis-profile=thorough`` draws many more examples than a working day's run.
"""

import pytest
from hypothesis import settings

from knowledge_base.chips import from_driver
from knowledge_base.errors import UserError

settings.register_profile("thorough", max_examples=200, deadline=None)


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
