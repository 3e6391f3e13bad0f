"""The audit of the books. It compares the entries of placement, the API level, the cells and their hosts for each instance.

views.py           what all of them have about one instance, and how far they have come.
judging.py         pure: the faults in a view; mending.py: the mend of each.
reading.py         asks all of them, page by page side by side.
auditing.py        one audit: looks twice, and mends.
audit_command.py   `moor audit`
"""
