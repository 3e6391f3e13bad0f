"""A whole cloud on one event loop with a simulated clock. One seed decides everything in it, faults included.

The workers are the real ones; the brokers and the stores are those in memory. A seed yields a plan: which clients boot,
delete and disable what, which hosts fail, which processes die at which point. The run carries out the plan. Checkers
follow every commit and every parcel. Then the faults stop, and everything must settle.

    plan.py, faults.py, drawing.py, drawing_cloud.py
                                     the plan of a seed as a value, how it is drawn, and which seeds are of which world.
    loop.py, process.py              the simulated clock; a process, its tasks, and how it dies.
    faulty_broker.py, faulty_database.py, workers.py
                                     the real parts of a process with their own stores, over a broker and databases that inject
                                     faults.
    stored_books.py                  the rows of placement's books, for checkers.
    clients.py                       clients, and an operator.
    drawing_nodes.py, ironic.py, nodes_checker.py
                                     bare metal: its plans, its Ironic, and the checker of nodes, daemons and reports.
    drawing_demands.py, demands.py, demands_checker.py
                                     requests with groups, ports and zones: their plans, the slow rule which providers
                                     serve them, and the checker of what they get.
    drawing_moves.py, movers.py, moves_checker.py
                                     moves: their plans, the client that orders and ends them, and the checkers of what
                                     is held, and of what runs where.
    drawing_moves.py, boots_checkers.py
                                     moves that wait for room: their plans, and the checker of who gets it.
    drawing_worlds.py, boots_checkers.py
                                     orders to stop, start and reboot instances, and the checker of what really runs.
    drawing_worlds.py, shares_checkers.py
                                     the limits that an operator sets for a project, and the checker of what it has.
    drawing_worlds.py, boots_checkers.py
                                     schedulers that lose their feed queues, and the checker of what they have missed.
    drawing_keeping.py, keeping.py   keepers: their campaigns and budgets, the operator who begins them, and the checker of
                                     what is granted and ordered.
    admins.py
                                     administrators that write to placement directly (not by claims), over the bus
                                     and as an HTTP server does it, and the rows that they write about.
    cloud.py, seeds.py               one seed from its beginning to its end.
    findings.py                      the broken promise, the counts and the timeline of a run; a broken promise ends it.
    books_checker.py, requests_checker.py, cells_checker.py, real_instances.py, host_history.py, traffic.py,
    decision_watch.py                checkers of claims, requests, instances, hypervisors, hosts, messages and decisions.
    write_oracle.py, write_rules.py, view_oracle.py
                                     apply each administrator's write a second time by simpler rules, in commit order,
                                     and compare; the same for the view that reads are answered from.
    settling.py                      what has not settled at the end, and why.
    intruders.py                     senders of broken bytes and forged messages.
    many_seeds.py, kept.py, expected_coverage.py
                                     runs of many seeds, plans that broke a promise once, and what seeds must have covered.
    bug_search.py, planted/          bugs planted on purpose, and the search for the smallest plan that shows one.

`python -m tests.simulation --seed 7` prints one seed; `--seeds 100000` is a long run, and keeps the plans that break a promise.
"""
