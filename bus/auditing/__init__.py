"""The rules by which the books are audited. Pure: the caller reads the books, and looks again before it believes a fault.

views.py      what placement, the API level, the cells and the hosts have about one instance.
judging.py    the faults of one instance.
claims.py     claims without a row of their own, such as those of migrations: which of them has leaked.
of_nova.py    which consumers are Nova's: only Nova can say whether it needs them.
at_rest.py    what else must hold when every order has ended.
hosts.py      names that hosts of several cells have.
mending.py    the mend of each fault.
"""
