"""Worlds drawn from a seed: real protocol code on a virtual network that hurts, and the promises it must keep."""
