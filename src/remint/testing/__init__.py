"""What tests of remint, and of programs that use it, can use."""
