"""Benchmarks: `python -m tests.bench [NAME ...]`; one file each; CPU seconds or ratios."""
