"""The lab: methods of training compared on learning alone, in one process, without a network."""
