"""Commands about the broker: its objects, users, dead letters and events; and the reference of messages."""
