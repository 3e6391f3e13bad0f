"""The whole cloud at a glance.

counting.py   hosts, their room and how full they are, counted in the picture
questions.py  puts an overview together, and keeps it for a while
"""
