"""How much each operator computes."""

from ds_profiler.rules.book import RuleBook, default_rules
from ds_profiler.rules.rule import Rule

__all__ = ["Rule", "RuleBook", "default_rules"]
