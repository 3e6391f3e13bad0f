"""`moor import nova`: takes the hosts of a legacy Nova over, one after the other, with their instances.

    reading.py       reads all that Nova knows of one host
    core/            decides: what keeps a host back, which share an instance has here, what differs
    cloud.py         what Moorage has of a host; orders to it
    handing_over.py  one host: fence, copy, verify, enable; and back
    shared.py        what belongs to no host: flavors, groups, aggregates
    command.py       the command

Nova's databases are only read (scheduler_worker/nova_cloud/databases.py). Nothing else is stored: each run compares both sides and does what is missing, so it may be
interrupted anywhere, and repeated. The hosts that Moorage has are the members of the aggregate `from-nova`.
"""
