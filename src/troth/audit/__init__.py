"""Auditing a whole run offline, from one peer's folder, for people who were not there (SPEC E5)."""
