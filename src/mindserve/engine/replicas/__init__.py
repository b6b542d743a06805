"""Several engines on a Ray cluster behind one `Engine`: which replica answers is Ray Serve's business.

A request is one call, routed by Serve, that lasts until the replica has answered. Its events do not travel in that
call: Ray takes hundreds of microseconds for each item of a stream, on both sides. Instead every replica has one open
stream to this server (a `Link`), with one item per engine step for all requests together.

| file | what it owns |
|---|---|
| `engine` | the `Engine`: refuses what it can, starts and ends the rest |
| `members` | which replicas take part: found, linked, told about adapters, given up |
| `link`, `clock` | the stream of one replica, and its clock in terms of ours |
| `requests`, `stream` | what runs, and the events of one request |
| `replica`, `outbox` | the other side: an engine on its node, and what it has to say to a server |
| `wire` | what travels between the two |
| `affinity`, `sizing` | where equal beginnings went, and the cores of a replica |
| `fleet`, `cluster`, `router` | what is asked of a cluster, and Ray, which does it |
"""

from mindserve.engine.replicas.engine import ReplicaEngine

__all__ = ["ReplicaEngine"]
