"""The commands behind the Makefile: browser assets, execution, publishing."""
