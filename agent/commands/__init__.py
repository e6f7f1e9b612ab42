"""What :mod:`agent.cli` calls, a module a command: it reads what the user wants, has it done, and says what came."""
