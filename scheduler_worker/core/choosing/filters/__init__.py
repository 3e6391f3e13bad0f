"""The filters, one in each file (those that a flag decides are all in flagged.py): which hosts could take one instance more?

Together they pass no host that placement would refuse; filters about the registry and about limits remove others, too.
"""
