"""What in a diagnosis should be put right: rules, each a function of what was seen."""

from __future__ import annotations

from perfkit.records.doctor import Diagnosis, Finding
from perfkit.system.advice import gpus, numerics, place, threads

__all__ = ["RULES", "advise"]

RULES = (*threads.RULES, *numerics.RULES, *gpus.RULES, *place.RULES)
_ORDER = ("problem", "warning", "note")


def advise(seen: Diagnosis) -> tuple[Finding, ...]:
    """All findings, the worst first."""
    found = (finding for rule in RULES for finding in rule(seen))
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.severity)))
