"""The privacy budget of a site's key: by which accountant it is counted, and what is spent."""
