"""Benchmarks: `python -m asyncgrpo.bench [NAME ...]`; one file each, figures in CPU seconds or ratios."""
