"""Networks in a report: side by side, and the layers, figures and graph of each."""
