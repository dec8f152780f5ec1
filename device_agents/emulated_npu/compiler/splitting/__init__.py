"""One layer split over the cores of a group: graph to graph."""
