"""The pace against a machine whose step times are a formula."""

from mindserve.engine.native.pace import GRAIN, MIXED_STEPS_IN_A_ROW, Pace


class Machine:
    """Steps of 6 ms and 1 ms per decode; prompt tokens cost 0.3 ms and more the further they are."""

    def __init__(self, pace: Pace, *, budget: int = 512) -> None:
        self.pace, self.budget = pace, budget
        self.slowness = 1.0

    def step(self, *, decodes: int, prompts: int = 0, left: int = 0, past: int = 0) -> tuple[int, float]:
        """Prompt tokens of the step and its milliseconds."""
        limit = self.pace.prompt_tokens(decodes=decodes, prompts=prompts)
        tokens = min(left, self.budget if limit is None else limit)
        ms = self.slowness * (6 + decodes + tokens * (0.3 + past / 4000))
        self.pace.learn(decodes=decodes, prompt_tokens=tokens, seconds=ms / 1000)
        return tokens, ms

    def read(self, length: int, *, decodes: int, prompts: int = 1) -> list[float]:
        """Read a prompt; milliseconds of the steps that it took."""
        past, times = 0, []
        while past < length:
            tokens, ms = self.step(decodes=decodes, prompts=prompts, left=length - past, past=past)
            past += tokens
            times.append(ms)
        return times


def warm() -> Machine:
    machine = Machine(Pace(2.5))
    machine.step(decodes=0, prompts=1, left=100)
    for _ in range(5):
        machine.step(decodes=8)
    return machine


def test_a_long_prompt_does_not_stretch_steps_further_than_asked() -> None:
    times = warm().read(4000, decodes=8)
    assert max(times) < 2.7 * 14
    assert sorted(times)[len(times) // 2] > 2 * 14  # and what may be used is


def test_prompts_alone_have_no_limit() -> None:
    pace = warm().pace
    assert pace.prompt_tokens(decodes=0, prompts=3) is None
    assert pace.prompt_tokens(decodes=3, prompts=0) is None


def test_the_more_wait_the_more_they_get() -> None:
    pace = warm().pace
    few, many = (pace.prompt_tokens(decodes=8, prompts=prompts) for prompts in (8, 64))
    assert few is not None
    assert many is not None
    assert few == pace.prompt_tokens(decodes=8, prompts=1)
    assert many > 7 * few


def test_prompts_always_move() -> None:
    machine = warm()
    machine.slowness = 100
    machine.read(64, decodes=8)
    machine.slowness = 1
    assert machine.step(decodes=8, prompts=1, left=1000)[0] >= GRAIN


def test_an_unknown_number_of_decodes_is_looked_at_first() -> None:
    machine = warm()
    assert machine.step(decodes=16, prompts=1, left=1000) == (0, 22)
    assert machine.step(decodes=16, prompts=1, left=1000)[0] > 0
    assert machine.step(decodes=17, prompts=1, left=1000)[0] > 0


def test_a_machine_that_slows_down_under_constant_load_is_noticed() -> None:
    machine = warm()
    machine.slowness = 4
    shares = [machine.step(decodes=8, prompts=1, left=10**6) for _ in range(10 * MIXED_STEPS_IN_A_ROW)]
    alone = [ms for tokens, ms in shares if tokens == 0]
    assert 8 <= len(alone) <= 10
    assert sum(ms for _, ms in shares[-20:]) / 20 > 1.8 * 4 * 14


def test_one_slow_step_changes_little() -> None:
    machine = warm()
    machine.read(500, decodes=8)
    before = machine.pace.prompt_tokens(decodes=8, prompts=1)
    machine.slowness = 50
    machine.step(decodes=8, prompts=1, left=50)
    after = machine.pace.prompt_tokens(decodes=8, prompts=1)
    assert before is not None
    assert after is not None
    assert after >= before / 2
