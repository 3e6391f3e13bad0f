"""Descriptions of the fields of plans and explanations."""

PLANS: dict[str, dict[str, str]] = {
    "AskPlan": {
        "request": "the request; its `project` is empty or the one that is named here",
        "project": "whose request it is; an application must name one of its projects",
    },
    "PlanFound": {
        "qualify": "how many hosts qualify",
        "fit": "how many more instances fit on these",
        "is_cut": "true: more may fit; counting ended early, since compound hosts are filled one instance after another",
        "cells": "the same for each cell with hosts that qualify",
        "funnel": "how many of all hosts each filter removes; what is left qualifies",
        "relaxations": "smaller demands with which more hosts would qualify, the most helpful first",
        "pools": "the sharing providers that ran out",
    },
    "PlannedCell": {
        "cell": "its name",
        "hosts": "how many of its hosts qualify",
        "fit": "how many more instances fit there",
    },
    "Relaxation": {
        "change": "the change in words, such as `without trait X`",
        "hosts": "how many hosts would qualify with it",
    },
    "ExhaustedPool": {
        "pool": "the name of the sharing provider",
        "resource": "the resource class",
        "asked": "how much of it the request needs",
        "free": "how much of it is free; negative where the inventory shrank",
        "capacity": "how much of it there is",
        "hosts": "how many hosts would have to take it from there, since they have too little of their own",
    },
    "AskReasons": {
        "request": "as in `plan.query`",
        "step": "only hosts that this step removes; `qualify`: only hosts that no step removes. Empty: all hosts",
        "after": "only hosts whose names sort behind this one",
        "limit": "how many at most",
    },
    "ReasonsFound": {"hosts": "the page", "next": "the `after` of the next page; empty on the last one"},
    "HostVerdict": {
        "host": "the host's name",
        "cell": "its cell",
        "fit": "how many more instances fit there; compound hosts of a page take turns, at most 500 in all",
        "step": "the first step of the funnel that removes it; empty if it qualifies",
        "reason": "why, with the numbers",
    },
    "AskDrain": {"host": "the host's name"},
    "DrainFound": {
        "host": "its name",
        "fit": "how many of the instances would fit elsewhere",
        "instances": "the instances, in the order of their ids; each takes its room from those after it",
        "more": "true: the host has more than these",
    },
    "DrainedInstance": {
        "id": "its id",
        "name": "its name",
        "project": "its project",
        "to": "the host on which it would fit; empty if there is none",
        "cell": "the cell of that host, which may be another one",
        "reason": "why it fits nowhere, or why that is not known",
    },
    "AskExplanation": {
        "request_id": "the request. It or `instance` must be given",
        "instance": "only this instance",
        "project": "an application must name one of its projects",
        "plan_now": "true: also plan for the needs of the page's first instance now",
        "after": "the id of the last instance of the page before",
        "limit": "how many instances at most",
    },
    "ExplanationsFound": {
        "explanations": "one for each instance, in the order of their ids; empty if there is no such request or instance",
        "plan": "what would fit now",
        "next": "the `after` of the next page; null on the last one",
    },
    "Explanation": {
        "state": "the instance",
        "chosen_at": "when its first host was chosen; null if none was",
        "hosts": "how many hosts there were",
        "qualified": "how many of them qualified",
        "chosen": "the first host; `state` has the host of today",
        "alternates": "hosts for the case that this one fails, in their order",
    },
    "AskCapabilities": {
        "having": "the name of a trait, a resource class or a fact (`cell`, `zone`, `kind`, `hypervisor_type`, "
        "`hypervisor_version`, `supports`, `capabilities:KEY`). Empty: all names",
        "value": "only hosts with this value",
        "after": "with `having` the name of a host, else that of a capability: only those behind it",
        "limit": "how many at most",
    },
    "CapabilitiesFound": {
        "capabilities": "with `having` its values, at most 100; else a page of all names",
        "hosts": "a page of the hosts that have it",
        "next": "the `after` of the next page; empty on the last one",
    },
    "Capability": {
        "name": "its name",
        "kind": "`trait`, `class` or `fact`",
        "value": "the value; empty for a trait, the capacity for a class",
        "hosts": "how many hosts have this value",
        "values": "how many values there are",
    },
    "HostHaving": {
        "host": "the host's name",
        "cell": "its cell",
        "value": "as in `capabilities`",
        "free": "for a class: how much of it is free in the host's own tree",
    },
}
