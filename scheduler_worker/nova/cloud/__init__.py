"""What Nova knows of its cloud: compute nodes, services, aggregates and cells. Pure values, and how they change.

values.py    the values themselves, and what a request's reader and the choice need of them.
port.py      how the present value is asked for.
"""
