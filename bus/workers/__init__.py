"""The code above the broker port: the loop of a worker, receiving, publishing, asking questions, dead letters."""
