"""Configurations and libraries verified and timed, in a process of their own."""
