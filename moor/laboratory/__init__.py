"""`moor demo` and `moor load`: both try the product on a cloud of their own, and check at the end what it has done.

Nothing else imports this package: its commands are found by name, when they run.

- temporary_cloud.py: starts the cloud and removes it at the end.
- at_rest.py: checks what must hold when every order has ended.
- demo.py, demo_screen.py, demo_guests.py: builds while hosts fail, and shows it.
- private_servers/: libvirtds of the demo's own, and what else ends with the process that started it.
- load/: measures how much the cloud does per second.
"""
