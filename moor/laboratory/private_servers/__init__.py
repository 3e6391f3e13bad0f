"""Servers of our own, for demos and tests: their processes and data end with the process that started them, however that ends.

- keeper.py, keeper_process.py: hold a server's processes and its directory.
- processes.py: finds and ends the descendants of a process.
- starting.py: a free port, and a limited wait until a server answers.
- libvirtd.py: a libvirtd whose guests are nobody else's.
"""
