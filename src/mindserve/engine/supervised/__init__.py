"""An engine that is made anew when it has died, so that a server survives the death of its engine.

The callers of a dead engine hear of its failure, new ones are refused until its successor runs, and the adapters that
were loaded are loaded again. It is tried forever, ever less often.
"""

from mindserve.engine.supervised.engine import Patience, SupervisedEngine

__all__ = ["Patience", "SupervisedEngine"]
