"""What the command line does: a module for each command, and the local swarm with its faults and its report."""
