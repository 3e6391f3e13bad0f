"""Decides by named rules, before a handler runs, whether the caller may make this request.

The rules have upstream's names and defaults, and oslo.policy reads and judges them: upstream's policy files mean the
same here, and the `oslopolicy-*` tools work on them. The library costs 0.2 s of CPU at its import and some microseconds a
judgement. So only a process that serves the API imports it (enforcer.py), and Policy caches its answers.
"""

from placement_worker.api.policy.policy import BadPolicyError, Policy, policy_named

__all__ = ("BadPolicyError", "Policy", "policy_named")
