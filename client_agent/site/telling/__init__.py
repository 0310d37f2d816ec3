"""Notifications to the people at a site: the agent is connected, something does not work, something waits."""
