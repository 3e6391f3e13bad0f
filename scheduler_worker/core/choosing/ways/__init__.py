"""The plugins that judge ways, one in each file. They say which of a host's ways to serve a request is best, and which
ways are not allowed.
"""
