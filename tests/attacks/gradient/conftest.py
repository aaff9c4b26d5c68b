"""Fixtures that tests of attacks share with those of rules."""

from tests.aggregation.conftest import byzfl

__all__ = ["byzfl"]
