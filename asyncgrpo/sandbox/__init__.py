"""Processes that judge answers: a model's programs, and mathematics.

    worker --gold, answer--> math process                    math-verify, with a time limit

    worker --code, inputs--> launcher --fork--> check --fork--> candidate   never sees a test
      |                                           └-----fork--> judge       calls the candidate
      └--tests---------------------------------------------------^

A program is judged in a process that the program cannot reach. Candidate and judge are confined:

| rule                          | by                                                              |
|---|---|
| no network                    | seccomp: `socket` and io_uring are refused                      |
| no other process              | seccomp: fork, exec, and signals to others are refused          |
| no writing outside its folder | Landlock; seccomp for owners, modes, times, shared memory       |
| no reading beyond Python      | Landlock: system libraries and Python's, not /proc, not /home   |
| CPU, memory, file sizes       | resource limits                                                 |
| wall time, disk, output       | the check, which kills both                                     |
| no privileges, no new ones    | capabilities dropped, no_new_privs                              |
| no secrets                    | the launcher starts with an environment of its own              |
| nothing is left behind        | parent-death signals; the check waits, and removes the folder   |
"""
