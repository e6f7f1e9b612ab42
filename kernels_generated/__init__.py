"""What users import: winners that were promoted, a folder a task, and the :mod:`.runtime` that they need."""
