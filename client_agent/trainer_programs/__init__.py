"""Programs that run in the other environment: Python and numpy alone, and the framework that the site has there."""
