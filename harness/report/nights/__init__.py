"""Nights in a report: Markdown, JUnit XML, and the page of all nights."""
