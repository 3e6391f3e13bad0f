"""Judges the tests: changes one place of the product, and asks each kind of test whether it sees that.

A *place* is a function of the product (places.py), a *change* is a planted bug (tests/planted) or a mutant (mutants.py). Which tests run
a place is noted once (watching.py). Then one process of each kind collects its tests, and forks for every change (forking.py).
"""
