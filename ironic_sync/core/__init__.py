"""The rules: what a notification says, what a node offers, which word about a node counts, who owns it. Pure."""
