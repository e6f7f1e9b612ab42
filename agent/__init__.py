"""What to do next: the command line (:mod:`.cli`), what it calls (:mod:`.commands`), the loop, who writes kernels."""
