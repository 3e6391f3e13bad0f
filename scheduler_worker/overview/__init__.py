"""The whole cloud at a glance.

counting.py   hosts, their room and how full they are, counted in the picture
kept.py       what is costly to make is kept for a while
questions.py  puts overviews and tiles together
"""
