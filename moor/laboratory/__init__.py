"""`moor demo` and `moor load`: both try the product on a cloud of their own, and check at the end what it has done.

Nothing else in the product imports this package: its commands are found by name, when they run.

- temporary_cloud.py: starts the cloud and removes it at the end.
- at_rest.py: checks what must hold when every order has ended.
- demo.py, demo_screen.py, demo_guests.py: builds while hosts fail, and shows it.
- private_servers.py, private_libvirtd.py: servers that end with the process that started them.
- load/: measures how much the cloud does per second.
- plugin_check.py: holds a filter or a weigher against the rules of the choice, in the tests of its author.
"""
