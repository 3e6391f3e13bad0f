"""`moor load --bare-metal`: measures state changes and deploys per second, and the CPU time of each process for them.

The simulated Ironic runs in the load generator's process, whose CPU time is shown beside that of the others.

- watching.py: keeps what placement has of the nodes, by its events.
- firing.py: makes the changes of nodes' states and the deploys, and notes how each ended; load/firing.py gives them.
- nodes.py: the simulated nodes.
- running.py: runs a whole run.
- results.py: prints the figures as JSON or as a table.
"""
