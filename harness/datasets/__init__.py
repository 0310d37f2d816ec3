"""Data sets of the demo and the case studies, split over hospitals by rules that are fixed beforehand."""
