"""What an operation costs: `python -m tests.benchmarks`, by itself on a quiet machine.

Judged is the CPU time of every process that has a part in it, the broker's and the database's included; the rate by the
clock stands beside it, since that says as much about who else was busy. Nothing here asserts on time: a run fails if
an answer is wrong or the books do not add up, and else says what it saw. docs/benchmarks.md keeps what was seen last.

    cpu.py             who spent how much
    measuring.py       runs, repeated, and what they make together
    messages.py        what is sent
    brokers.py         the buses that it is sent over
    books.py           the stores that claims end up in
    roles.py           who works at the other end; apart.py and other_process.py put it into a process of its own
    clouds.py          providers to search, many of them
    incumbent.py       placement servers, ours and OpenStack's, with a cloud on their books; and what is to be between them
    http_client.py     who asks them, and http_load.py, what and how often
    section_*.py       the measurements: the bus, the claims, claims over the bus, and placement over HTTP
    report.py          tables and JSON
"""
