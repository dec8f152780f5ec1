"""Fusion of operators: rules, pairs that rules can be found for, and what a runtime rewrites before it fuses."""
