"""Speed of fedskew beside a plain loop, pfl, Flower and the machine's own limit."""
