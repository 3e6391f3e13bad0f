"""The filters, one in each file: which hosts could take one instance more?

Together they pass no host that placement would refuse; filters about the registry and about limits remove others, too.
"""
