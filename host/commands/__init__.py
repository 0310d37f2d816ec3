"""Commands that are neither a server's nor a site's, and how options become one."""
