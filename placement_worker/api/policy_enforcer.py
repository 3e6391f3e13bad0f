"""Reads and judges rules by oslo.policy, and serves oslo's `oslopolicy-*` tools. No other module imports oslo.policy."""

import logging
from collections.abc import Mapping

from oslo_config import cfg
from oslo_policy import policy as oslo

from placement_worker.api.policy import DOCUMENTED, LEGACY, BadPolicyError


def read_rules(rules: Mapping[str, str]) -> oslo.Enforcer:
    """Make an enforcer that judges by these rules.

    Raises BadPolicyError for a rule that cannot be read, and for what oslo.policy finds wrong: a rule that refers to a missing
    one, or to itself.

    The enforcer has a configuration of its own and never reads a file again: a file that an operator edits while the
    server runs would take effect unchecked.
    """
    # It logs a traceback for what is refused here in one line.
    logging.getLogger("oslo_policy").setLevel(logging.CRITICAL)
    enforcer = oslo.Enforcer(cfg.ConfigOpts(), rules=oslo.Rules.from_dict(dict(rules)), use_conf=False)
    for name, text in rules.items():
        # What oslo.policy cannot read becomes `!`, in part or whole: such a rule would deny its requests without a word.
        if str(enforcer.rules[name]).count("!") > text.count("!"):
            raise BadPolicyError(
                f"{name} is {text!r}: oslo.policy cannot read it. Write kind:value, @ or !, joined by and, or, not, (...)"
            )
    try:
        enforcer.check_rules(raise_on_violation=True)
    except oslo.InvalidDefinitionError as wrong:
        said = str(wrong).removesuffix("Check logs for more details.")
        raise BadPolicyError(f"{said}Each refers to a rule that does not exist, or to itself") from None
    return enforcer


def list_rules() -> list[oslo.RuleDefault]:
    """The rules of OpenStack's Placement with their texts, for oslo's tools (entry point `oslo.policy.policies`)."""
    return [_rule_default(name, *texts) for name, texts in DOCUMENTED.items()]


def get_enforcer() -> oslo.Enforcer:
    """Make a policy enforcer for oslo's tools, which find this function by the entry point `oslo.policy.enforcer`.

    The service never calls it: the enforcer reads oslo's global configuration, which only those tools fill.
    """
    enforcer = oslo.Enforcer(cfg.CONF)
    enforcer.register_defaults(list_rules())
    return enforcer


def _rule_default(name: str, description: str, *requests: str) -> oslo.RuleDefault:
    if not requests:
        return oslo.RuleDefault(name, LEGACY[name], description)
    operations = [
        oslo.Operation(method=method, path=path)
        for method, path in (request.split(" ", 1) for request in requests)
    ]
    return oslo.DocumentedRuleDefault(name, LEGACY[name], description, operations, scope_types=["project"])
