"""`moor load`: measures how many boots per second the cloud makes, how long they take, and the CPU time of each process per boot.

What is given, and when:

- mix.py: reads `--mix`, and says which order follows which.
- schedule.py: when orders are due at a rate.
- orders.py, groups.py: boots, moves and deletes, and how each of them ended; the server groups that they need.
- firing.py: gives these orders, and hears events until each has ended.
- senders.py, publisher_process.py: who sends them.

What is measured:

- clocks.py, cpu.py, memory.py: reads CPU time and memory of processes from the kernel.
- listeners.py: finds the process that serves a URL's port on this machine.
- measuring.py: reads the CPU time of all processes at the begin, after each tenth and at the end.
- sampling.py: reads it once a second, and says how the run went over time.
- stages.py: how long the stages of boots took.

What is shown:

- results.py: the figures, and their JSON; table.py prints them, and plot.py draws them.

running.py puts it together, own_servers.py refuses servers that hold other data, and metal/ is the load on bare metal.
"""
