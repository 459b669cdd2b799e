"""Run Research Agent on one's own machine, with no account and no key."""
