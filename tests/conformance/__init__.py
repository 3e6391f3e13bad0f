"""Do we behave as OpenStack's Placement does towards its clients? Checked with upstream's own test suite, and with its
clients.
"""
