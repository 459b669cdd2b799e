"""Research Agent: a bounded public-web research AgentApp."""
