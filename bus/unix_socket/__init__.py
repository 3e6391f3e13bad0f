"""Shares a memory broker with other processes of this machine over a Unix socket; `moor up` serves it.

A process that may open the socket's file may act as any user of the broker: the file's permissions are the protection.
The client's user name is trusted; its rights are then enforced as on every broker.

This package imports neither side: a command that is a client starts without the whole memory broker.
"""
