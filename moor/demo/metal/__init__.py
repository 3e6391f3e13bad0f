"""`moor demo --bare-metal`: instances are built on bare-metal nodes, while nodes go into maintenance and a daemon is killed.

stage.py        what it plays on, embedded or on real servers: the cloud, Ironic's API, the daemons' rows
playing.py      what is asked, flipped and killed, and when
tally.py        what was heard on the bus and read of the nodes so far
picture.py      that, drawn while it runs
concluding.py   at the end: what Ironic, the daemons, placement and the schedulers say, compared
"""
