"""Decides, for pretended hosts: what of a tree is to be reported, what becomes of an attempt, which fault is on."""
