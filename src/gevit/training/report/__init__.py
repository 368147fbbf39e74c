"""What a run came to, as a page for people (`report.html`, `report.md`) and as numbers (`report.json`)."""

from gevit.training.report.record import RunRecord
from gevit.training.report.write import write_report

__all__ = ["RunRecord", "write_report"]
