"""Reads and writes consumers and what they hold. Where one statement for both databases would cost too much, each has its
own.
"""
