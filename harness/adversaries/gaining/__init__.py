"""Sites that lie about their update to gain weight, and what they do with it.

lies        what a liar shows where it is measured, and adds where it is only summed
lying_sum   a round in which some sites lie, for any way of summing
lying_run   a study with liars and the same one without, side by side
lying_line  what came of it, as a line of JSON
"""
