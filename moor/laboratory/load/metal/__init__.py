"""`moor load --bare-metal`: measures state changes and deploys per second, and the CPU time of each process for them.

The simulated Ironic runs in the load generator's process, whose CPU time is shown beside that of the others.

- watching.py: receives the events about nodes and instances.
- firing.py: changes the states of nodes, builds on them and deletes again, a bounded number at a time.
- running.py: runs a whole run.
- results.py: prints the figures as JSON or as a table.
"""
