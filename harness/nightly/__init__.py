"""A lab's nights: what is due, measured, published, compared and told, by an idempotent command."""
