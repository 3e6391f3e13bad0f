"""Handlers of questions: they change nothing.

instances.py   instances, and the answer to a message that cannot be read
history.py     the orders for an instance, and moves
planning.py    hosts for a request that is not built: plans, reasons, capabilities
explaining.py  how hosts were chosen, and whether the instances of a host would fit elsewhere
"""
