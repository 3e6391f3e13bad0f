"""What all workers share: messages and the rules by which an audit compares them, queues and rights, three kinds of broker,
sending, and the loop that runs handlers.
"""
