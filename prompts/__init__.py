"""What a language model is told.  Empty until the LLM proposer exists; the synthesizer needs no prompt."""
