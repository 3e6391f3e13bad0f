"""`moor load`: measures how many boots per second the cloud makes, how long they take, and the CPU time of each process per boot.

- command.py: the options. running.py: starts the cloud, fires and measures, and audits; with `--bare-metal` on nodes.
- orders.py, metal.py: boots, moves, deletes, state changes and deploys; which follows which, and how each of them ended.
- firing.py, senders.py: gives these orders, and hears events until each has ended; who sends them.
- kernel.py, measuring.py: reads CPU time and memory of processes, and says how the run went over time.
- results.py, plot.py: the figures, their JSON and table, and the picture.
"""
