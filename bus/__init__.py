"""How everything talks: messages, topology, the broker port and its brokers, the publisher and the worker loop."""
