"""Integer programs and the solvers that run them, each in a process of its own."""
