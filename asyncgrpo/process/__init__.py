"""The log, the title and the end of every process of ours."""
