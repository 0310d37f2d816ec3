"""The roster that a server goes by: what it has accepted for good, and how it follows a longer one."""
