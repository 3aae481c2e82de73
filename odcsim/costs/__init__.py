"""What things cost: compute and transfers in seconds, memory in bytes. Formulas and sources: docs/model.md."""
