"""`moor load --bare-metal`: how many state changes and deploys a second, and what each of them costs whom.

The simulated Ironic is in the process of the load generator, whose CPU is counted beside that of all others.

watching.py   what is heard on the bus of nodes and instances
firing.py     changes the state of nodes, builds on them and deletes again, so many at once
running.py    a run from its beginning to its end
results.py    the figures, as JSON and as a table
"""
