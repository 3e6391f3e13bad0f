"""A worker in the place of nova-scheduler: it answers nova-conductor on Nova's own RabbitMQ, and claims in placement.

settings.py          what an operator may tune of it
queues.py            the queues and exchanges of Nova's RPC, as oslo.messaging declares them
hosts.py             hosts, aggregates and names, from what Nova knows
news.py              has Nova read again when placement has hosts that Nova was not known to have
nova_search.py       the search for the host of one instance of Nova
group_providers.py   which provider serves which group of a claimed share
over_http/           a placement that is reached over HTTP alone
deciding.py          decides a batch of requests, and undoes what could not be answered
calls.py             one call under way: its deadline, and how it is told from others
serving.py           the loop over Nova's queues
wiring.py            all parts together
running.py           the process
"""
