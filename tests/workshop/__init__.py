"""Tests of the other house."""
