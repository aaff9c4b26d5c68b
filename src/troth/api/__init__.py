"""The Python API behind `import troth`: simulate, join a run, make one, verify what others claim.

`troth/__init__.py` names what is public. Nothing here prints: steps are values, notes go to the logger `troth`.
"""
