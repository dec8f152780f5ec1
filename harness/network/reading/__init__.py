"""Networks from files: read, checked and prepared, and what work on a file may take."""
