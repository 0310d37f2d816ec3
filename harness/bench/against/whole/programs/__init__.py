"""What other systems run, in environments of their own: nothing here is imported by ours."""
