"""The filters, one in each file, or several of one class that differ in data (flagged.py, by_search.py, limit.py): which hosts could take one instance more?

Together they pass no host that placement would refuse; filters about the registry and about limits remove others, too.
"""
