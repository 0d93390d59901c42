"""A simulated AT Protocol network, offline and seeded: the oracle the indexer is tested and demonstrated with.

It shares no code with what it tests: its own encoder, tree, signatures and judgement of freshness.

>>> world = World(seed=7)
>>> async with Relay() as relay:
...     relay.publish(world.run(1000))
...     truth = world.expected()
"""

from indexer.simulator.relay import Relay
from indexer.simulator.world import World

__all__ = ["Relay", "World"]
