"""Profiles of the property tests: `quick` gives the same examples in every run, `thorough` looks for new ones."""

from hypothesis import settings

settings.register_profile("quick", max_examples=50, deadline=None, derandomize=True, database=None)
settings.register_profile("thorough", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("quick")
