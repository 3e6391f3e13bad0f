"""`moor demo --bare-metal`: builds instances on nodes, while nodes go into maintenance and a daemon is killed.

- running.py: sends the requests, switches maintenance on and off, and kills the daemon.
- tally.py: counts the received events and reads the daemons' rows.
- screen.py: draws these counts while the demo runs.
- checking.py: prints them at the end, and the problems that were found.
"""
