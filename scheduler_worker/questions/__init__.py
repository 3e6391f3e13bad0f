"""Handlers of questions, which read and write nothing.

instances.py   instances, and the answer to a message that cannot be read
history.py     what was ordered for an instance, and moves
planning.py    hosts for a request that is not built: plans, reasons, capabilities
explaining.py  how hosts were chosen, and whether the instances of a host would fit elsewhere
"""
