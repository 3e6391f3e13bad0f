"""The filters: each says which hosts could take one more instance. Each has a file of its own, but for filters of one
class that differ in data alone (flagged.py, by_search.py, limit.py).

Together they pass no host that placement would refuse. Filters about the host registry and about limits remove other
hosts, too.
"""
