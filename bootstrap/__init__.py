"""How a peer gets into a swarm: identity, the DHT, presence records, genesis and the entry server."""
