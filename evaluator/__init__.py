"""What is true: trace, compile, emulate, judge and time candidate kernels."""
