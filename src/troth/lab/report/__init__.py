"""The report of a sweep: one page, figures and tables, from the files that the sweep left and nothing else."""

from troth.lab.report.write import Report, write_report

__all__ = ["Report", "write_report"]
