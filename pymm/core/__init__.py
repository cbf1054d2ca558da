"""The problem and the files around it, without any machine."""
