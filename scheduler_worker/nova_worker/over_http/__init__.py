"""The placement of a Nova, OpenStack's or ours, over HTTP: the picture is read from it, and claims are written there.

settings.py  where it is, how to log in, and how often it is read
api.py       its requests and answers
books.py     keeps the picture up to date with it
claims.py    claims, swaps and releases as writes of allocations, judged by the consumers' generations
"""
