"""Messages, topology, the broker port with its three brokers, the publisher and the worker loop."""
