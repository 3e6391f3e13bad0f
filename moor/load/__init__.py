"""`moor load`: how many boots a second, and what each of them costs whom.

firing.py      asks for so many instances, so many at once, and listens until each has ended
measuring.py   who spent how much while they did
cpu.py         what the kernel knows of that
listeners.py   which process serves a URL's port, if it is on this machine
auditing.py    asks everybody afterwards, and compares
results.py     the figures, as JSON and as a table
"""
