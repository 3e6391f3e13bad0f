"""The whole cloud on one loop whose clock jumps, with everything drawn from one seed, and everything that can go wrong.

The rooms are the real ones, over the memory broker and the memory stores. A seed is a plan (who boots, deletes and
disables what, which hosts fail, which processes die at which point); the plan is played, checkers follow every commit
and every parcel, then nothing goes wrong any more and everything must settle.

    plan.py, faults.py, drawing.py   what is to happen, as a value, and how it is drawn from a seed
    loop.py, process.py              time that jumps; a process, its tasks, and how it dies
    wires.py, stores.py, store_of_*.py, workers.py
                                     what stands between the real parts of a process and the world, and makes it fail
    people.py                        clients and an operator
    drawing_nodes.py, ironic.py, nodes.py
                                     bare metal: its plans, its Ironic, and who follows nodes, daemons and reports
    clerks.py, errands.py, proposals.py, estate.py
                                     those who write into placement's books by name, over the bus and at an HTTP server's
                                     desk, and what they come upon
    cloud.py, seeds.py               a seed from its beginning to its end
    findings.py                      what was found and seen; the first broken promise ends a run
    books.py, requests.py, cells.py, physical.py, hosts_seen.py, hearing.py, pairs.py
                                     who follows what: claims, requests, instances, what really runs, hosts, words
    register.py, pages.py, applying.py, excuses.py, viewing.py
                                     what is written by name: applied once more, by simpler rules, in the order of the
                                     commits; and what reads are answered from
    settling.py                      what is left when everything should have settled
    intruders.py                     those who send bytes that are no messages, and forged messages
    many.py, done.py, expected.py    many seeds, which of them are done, and what they must have seen together
    hunting.py, planted/             bugs made on purpose, found, and shrunk to what shows them

`python -m tests.simulation --seed 7` tells one seed; `--seeds 100000` is a long run, and keeps what fails.
"""
