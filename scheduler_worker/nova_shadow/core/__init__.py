"""The notes of shadow mode, and how two choices are compared. Pure.

notes.py       one instance of one request: what we chose, and what Nova chose
comparing.py   which of both is better by our weighers, or refused by our filters
"""
