"""May this caller do that? Decided by named rules, before a handler runs.

Upstream's names and upstream's defaults, so that its policy files mean the same here; the language is read by a parser
of our own (language.py), since oslo.policy brings twenty packages, a configuration object for the whole process and a
copy of all credentials for each question, for what is a hundred lines and a microsecond.
"""

from placement_worker.api.policy.policy import BadPolicyError, Policy, policy_named

__all__ = ("BadPolicyError", "Policy", "policy_named")
