"""The Chinese of the reports."""
