"""The hands: the only code that touches a compiler or a driver."""
