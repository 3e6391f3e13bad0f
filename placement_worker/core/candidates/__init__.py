"""Which providers could give what is asked for, and how: the whole search for allocation candidates.

`query` says what may be asked, `woods` keeps all providers as columns, `search` finds, `found` is what it finds.
"""
