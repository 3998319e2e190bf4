"""Settings of all tests.

pytest                                  the same examples each time
pytest --hypothesis-profile=search      new ones, and many
"""

from hypothesis import HealthCheck, settings

# A clock fails on a busy machine, and an example that nobody has met fails whoever comes next.
settings.register_profile(
    "asyncgrpo",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search", settings.get_profile("asyncgrpo"), derandomize=False, max_examples=2000
)
settings.load_profile("asyncgrpo")
