"""What an operation costs, beside the committed figures: `python -m tests.costs`.

- baseline.toml: the figure of each cost, with the day and the reason of its last change.
- counting.py: counts calls, statements, rows and messages. These hardly vary, and stand first.
- operations.py: runs each operation, and returns its costs.
- judging.py: compares costs with the baseline.
"""
