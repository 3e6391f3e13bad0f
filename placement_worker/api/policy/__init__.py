"""Policy: may this caller do this? Named rules decide it before a handler runs.

The rules have upstream's names and defaults, so upstream's policy files mean the same here. A parser of this project
(language.py) reads them. oslo.policy would bring twenty packages, one configuration object for the whole process, and a
copy of all credentials for each check, in place of a hundred lines and a microsecond.
"""

from placement_worker.api.policy.policy import BadPolicyError, Policy, policy_named

__all__ = ("BadPolicyError", "Policy", "policy_named")
