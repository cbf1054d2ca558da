"""Which configuration a product gets, and why."""
