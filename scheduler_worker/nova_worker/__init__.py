"""A worker in the place of nova-scheduler: it answers nova-conductor on Nova's own RabbitMQ, and claims in placement.

settings.py      what an operator may tune of it
queues.py        the queues and exchanges of Nova's RPC, as oslo.messaging declares them
instance_info.py which instances each host has, as computes tell all schedulers
hosts.py         hosts, aggregates and names, from what Nova knows
nova_search.py   the search for the host of one instance of Nova
group_providers.py   which provider serves which group of a claimed share
deciding.py      decides a batch of requests, and undoes what could not be answered
calls.py         one call under way: its deadline, its signs of life, its answer
serving.py       the loop over Nova's queues
wiring.py        all parts together
"""
