"""The weighers: each says which of the hosts that qualify are better. Each has a file of its own, but reported.py
weighs all numbers that hosts report.
"""
