"""Recorded studies: each is a module that can be run, and the rows it gave in a file beside it."""
