"""Decisions for simulated hosts: what to report of a tree, how an attempt ends, which faults are active."""
