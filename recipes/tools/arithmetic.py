r"""The two tools of recipes/tools.yaml.

"What is 12 + 7?"  ->  add(12, 7)  ->  19  ->  \boxed{19}
"""


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first.
        b: The second.

    Returns:
        Their sum.
    """
    return a + b


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first.
        b: The second.

    Returns:
        Their product.
    """
    return a * b
