"""The nightly: one resumable command that measures a lab, publishes tables, compares nights and reports."""
