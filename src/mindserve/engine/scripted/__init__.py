"""An engine that plays a script: tests, load tests of the HTTP half, and `modelInstanceType: StandardMock`.

It keeps the engine's promises (masks, stop tokens, length, cancel, one terminal event per sequence, shared steps) and
breaks them where the script says so: refuse, fail or fall silent after some tokens.
"""

from mindserve.engine.scripted.engine import Codec, ScriptedEngine
from mindserve.engine.scripted.script import Answer, Script, load_script

__all__ = ["Answer", "Codec", "Script", "ScriptedEngine", "load_script"]
