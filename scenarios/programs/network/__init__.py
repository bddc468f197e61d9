"""Programs that cross a network, or that use the sockets of the engine by themselves."""
