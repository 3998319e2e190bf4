"""The words that both ends of a socket know; neither imports the other.

child --READY--> worker    check --OK | FAILED | ...--> worker    judge --PASSED | ...--> worker
"""

READY = "ready"  # a child's first word; any other text is the reason why it cannot serve

MATH_SECONDS = 5.0  # of a request to math-verify

OK, FAILED, TIMEOUT, TOO_MUCH = "ok", "failed", "timeout", "too much output or disk"

PASSED = "passed"
UNSUPPORTED = "unsupported: "  # then the reason why a judge outside the program cannot run the test
