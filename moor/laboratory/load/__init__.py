"""`moor load`: measures how many boots per second the cloud makes, and the CPU time of each process per boot.

- orders.py: boots, moves and deletes, and how each of them ended.
- firing.py: gives these orders, a bounded number at a time, and hears events until each has ended.
- measuring.py: reads the CPU time of all processes meanwhile.
- cpu.py: reads CPU times from the kernel.
- listeners.py: finds the process that serves a URL's port on this machine.
- results.py: prints the figures as JSON or as a table.
"""
