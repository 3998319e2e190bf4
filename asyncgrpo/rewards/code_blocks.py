"""The program in a text: its fenced blocks, and which of them is meant.

    ```python  |  ~~~py  |  indented, as in a list   --fenced_blocks-->  (language, code)
    blocks that say Python, else those that say nothing --the last that does something--> program

A block after the program that shows what it prints is not the program.
"""

import ast
import re
import textwrap
import warnings

PYTHON = {"", "py", "python", "python3"}
_FENCE = re.compile(r"([ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)(`{3,}|~{3,})[ \t]*([^\n]*)")
_LANGUAGE = re.compile(r"[{.]*([\w+#-]*)")


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """The language, in lower case, and the code of each fenced block that is closed."""
    blocks: list[tuple[str, str]] = []
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = _FENCE.fullmatch(line)
        if opening is None:
            if fence is not None and not (fence[2][0] == "`" and "`" in fence[3]):
                opening, lines = fence, []
        elif fence is not None and _closes(fence, opening):
            blocks.append((_language(opening[3]), _dedented(lines, opening[1])))
            opening = None
        else:
            lines.append(line)
    return blocks


def program_in(text: str) -> str | None:
    """The last program among the blocks; None without a block that may be Python."""
    blocks = [block for block in fenced_blocks(text) if block[0] in PYTHON]
    named = [code for language, code in blocks if language]
    candidates = named or [code for _, code in blocks]
    programs = [code for code in candidates if does_something(code)]
    return (programs or candidates or [None])[-1]


def does_something(code: str) -> bool:
    """False for what a program prints: values alone, or no Python at all."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes in strings
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(not isinstance(s, ast.Expr) or _calls(s) for s in tree.body)


def _calls(statement: ast.Expr) -> bool:
    return any(isinstance(node, (ast.Call, ast.Await)) for node in ast.walk(statement))


def _closes(fence: re.Match[str], opening: re.Match[str]) -> bool:
    mark, opened = fence[2], opening[2]
    is_outside = fence[1].isspace() or not fence[1]
    is_outside = is_outside and len(fence[1]) <= len(opening[1])  # else a line of the code
    return is_outside and mark.startswith(opened) and not fence[3].strip()


def _language(info: str) -> str:
    match = _LANGUAGE.match(info.strip())
    return match[1].lower() if match is not None else ""


def _dedented(lines: list[str], indent: str) -> str:
    """The lines without the indentation of their fence."""
    if not indent.isspace():  # of a list's entry
        indent = " " * len(indent)
    if all(line.startswith(indent) or not line.strip() for line in lines):
        return "".join(f"{line[len(indent) :]}\n" for line in lines)
    return textwrap.dedent("".join(f"{line}\n" for line in lines))
