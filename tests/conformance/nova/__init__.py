"""A whole real Nova on this machine, with the placement and the scheduler of our choice: `python -m tests.conformance.nova`."""
