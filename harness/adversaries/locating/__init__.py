"""An honest site's update, located by its distances to points that a requester and its accomplices know.

located         the estimate, over one measured round or several, and the error that theory expects
locating_run    a study's true updates, and what the estimates make of their distances
locating_line   what came of it, as a line of JSON
"""
