"""A compute whose host is a machine under libvirt."""
