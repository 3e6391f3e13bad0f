"""`moor demo --libvirt`: real guests of QEMU, on libvirtds that the demo starts for itself.

- boot_sector.py: the image, whose guests need no operating system.
- machines.py: the libvirtds, and what is seen of them without Moorage.
- running.py: the steps of the demo.
- checking.py: what is checked at its end.
"""
