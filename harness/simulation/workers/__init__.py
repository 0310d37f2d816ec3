"""Who does the runs of a case: this process, several of this machine, or the machines of a Ray cluster."""
