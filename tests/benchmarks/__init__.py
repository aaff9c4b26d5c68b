"""Benchmarks whose rules are worth a test."""
