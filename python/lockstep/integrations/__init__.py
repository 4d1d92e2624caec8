"""Lockstep as a backend of RL frameworks, a module for each. The rest of the package imports none of them."""
