"""What all workers share: messages, queues and rights, three kinds of broker, sending, and the loop that runs handlers."""
