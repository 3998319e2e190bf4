"""The words that both ends of the sandbox know; none of them imports the other.

launcher --READY--> worker    check --OK | FAILED | ...--> worker    judge --PASSED | ...--> worker
"""

READY = "ready"  # the launcher's first word: programs can be confined here

OK, FAILED, TIMEOUT, TOO_MUCH = "ok", "failed", "timeout", "too much output or disk"

PASSED = "passed"
UNSUPPORTED = "unsupported: "  # before what a test does that no judge apart from the program can
