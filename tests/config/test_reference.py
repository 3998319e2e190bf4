"""The reference page is the tree's own words."""

from pathlib import Path

from asyncgrpo.config.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date():
    command = "python -m asyncgrpo.config.reference > docs/configuration.md"
    assert PAGE.read_text(encoding="utf-8") == reference(), f"run `{command}`"


def test_the_page_says_type_default_and_meaning():
    rows = reference().splitlines()
    (row,) = [row for row in rows if row.startswith("| `num_generations` | a whole number >= 2")]
    assert row.startswith("| `num_generations` | a whole number >= 2 | `8` | Rollouts per prompt")
