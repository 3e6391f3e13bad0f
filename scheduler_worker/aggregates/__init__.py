"""Aggregates: orders and questions about them, and how each scheduler learns of their metadata.

    orders.py      handlers of orders
    membership.py  adds hosts to an aggregate and removes them, at placement
    questions.py   handlers of questions
    row_watch.py   reads the rows of aggregates

The rules are in core/aggregates/.
"""
