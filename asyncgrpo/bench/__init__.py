"""Benchmarks: `python -m asyncgrpo.bench [NAME ...]`; one file each; CPU seconds or ratios."""
