"""Settings of all tests."""

from hypothesis import settings

# Wall-clock deadlines fail on a busy machine; the file's own time limit is pytest's.
settings.register_profile("asyncgrpo", deadline=None)
settings.load_profile("asyncgrpo")
