"""`moor demo`: builds a thousand instances while hosts fail, stop answering and change their traits.

- running.py: sends the requests.
- tally.py: counts the events that were received.
- screen.py: draws these counts while the demo runs.
- checking.py: prints them at the end, and the problems that were found.
"""
