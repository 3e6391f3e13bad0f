"""Decides what a machine under libvirt offers, and which part of it a guest gets. Pure: text of XML in, values and text of XML out."""
