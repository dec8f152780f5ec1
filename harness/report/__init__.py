"""Reports: self-contained HTML pages with figures, and nightly reports as Markdown and JUnit XML."""
