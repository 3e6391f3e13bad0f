"""What holds for every test: properties are searched alike each time, and never fail for being slow."""

from hypothesis import settings

settings.register_profile("moorage", derandomize=True, deadline=None)
settings.load_profile("moorage")
