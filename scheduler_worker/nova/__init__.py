"""The words of Nova's message bus, read and written: oslo.messaging's envelope, Nova's objects, and `select_destinations`.

Everything here is pure: bytes and JSON values in, the scheduler's own values out, and back. A value that cannot be read, or
that a host cannot be chosen by, is refused with its path; none is ignored unless a table here says why it may be.
"""
