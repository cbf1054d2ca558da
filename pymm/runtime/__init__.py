"""From the arguments of a call to a bound launch."""
