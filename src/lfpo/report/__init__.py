"""The report of a run: one self-contained HTML file."""

from lfpo.report.html import write_report

__all__ = ["write_report"]
