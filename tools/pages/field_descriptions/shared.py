"""Descriptions of fields that several messages have."""

CELL_HEARD = {
    "cell": "the cell's name",
    "life": "`up`, `down`, or `unknown` where no heartbeat of a conductor was ever heard",
    "heard_at": "when the last heartbeat of a conductor that can work arrived",
    "reason": "why it counts as down; empty if it does not",
}
FOR_USER = {
    "for_user": "the person for whom you order, such as a user of the dashboard. History, hosts and logs show your user and this name: "
    "you answer for it",
}
PAGE = {
    "after": "the page starts after this item",
    "limit": "how many items at most",
    "next": "pass this as `after` to get the next page; none on the last page",
}
