"""SNF, the structured network form: what a piece of a network computes, never how."""
