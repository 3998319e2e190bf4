"""What the two ends of a math process agree on; neither imports the other.

judge  --{"gold": ..., "answer": ...}-->  process  --true | false | null-->  judge
"""

READY = "ready"  # the process's first line: math-verify is imported
SECONDS_PER_REQUEST = 5.0
