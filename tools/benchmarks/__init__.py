"""The cost of operations: `python -m tools.benchmarks`, on a quiet machine.

The measure is the CPU time of every process involved, including the broker's and the database's. Operations per second
are shown too, but they depend on other load. No benchmark asserts on time: a run fails if an answer is wrong or the
books do not add up, and prints its figures otherwise. docs/benchmarks.md has those that stand.

    cpu.py             CPU time by process.
    measuring.py       runs, their repetition, and their results.
    messages.py        the messages that are sent.
    brokers.py         the buses that they are sent over.
    books.py           the stores that claims are written to.
    roles.py           the receivers; remote_role.py and other_process.py run one in a process of its own.
    clouds.py          large numbers of providers to search.
    compared_servers.py placement servers, ours and OpenStack's, with a cloud on their books; comparison_targets.py: targets.
    http_client.py     their client, and http_load.py, its requests.
    section_*.py       the measurements: the bus, claims, claims over the bus, placement over HTTP, and others.
    report.py          tables and JSON.
"""
