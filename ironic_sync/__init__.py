"""Bare metal: reports Ironic's nodes to placement, and deploys instances on them. Several daemons share the nodes."""
