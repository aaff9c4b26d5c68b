"""Sweeps: many scenarios described by one file, run on all cores, and continued where they stopped."""
