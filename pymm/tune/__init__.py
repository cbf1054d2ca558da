"""The search for the best configuration of a problem on a device."""
