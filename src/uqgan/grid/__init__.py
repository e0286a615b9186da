"""Many runs: cells, their order, and what runs them: processes of this machine, or the nodes of a Ray cluster."""
