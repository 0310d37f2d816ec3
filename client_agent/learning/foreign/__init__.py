"""Updates that another framework computes, in a process and an environment of its own."""
