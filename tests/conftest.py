"""Hypothesis profiles: ``pytest --hypothesis-profile=thorough`` draws many more examples than a working day's run."""

from hypothesis import settings

settings.register_profile("thorough", max_examples=200, deadline=None)
