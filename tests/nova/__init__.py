"""Databases of a real Nova, for tests: Nova's and Placement's own migrations make them, in an environment of their own.

schema.py  makes the empty databases
rows.py    fills them
"""
