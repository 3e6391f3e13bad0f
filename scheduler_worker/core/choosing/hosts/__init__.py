"""The hosts as plugins see them while a batch is decided: columns with the batch's choices counted, and facts that no
choice changes.
"""
