"""From answers to figures: what a run of load says about throughput and latency."""

import statistics
from collections.abc import Sequence

from bench.client import Answer

Figures = dict[str, float]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def ttft_s(answer: Answer) -> float:
    """Time to the first text."""
    return answer.arrivals_s[0] - answer.sent_s


def itl_s(answer: Answer) -> float:
    """Mean time between two tokens."""
    return (answer.arrivals_s[-1] - answer.arrivals_s[0]) / max(1, answer.output_tokens - 1)


def load_figures(answers: Sequence[Answer], seconds: float) -> Figures:
    """Throughput over the whole run, latencies over its requests. Checks that no answer was short."""
    lengths = {answer.output_tokens for answer in answers}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"the answers differ in length, their times cannot be compared: {sorted(lengths)}")
    ttfts = [ttft_s(answer) for answer in answers]
    itls = [itl_s(answer) for answer in answers]
    prompt_lengths = [answer.prompt_tokens for answer in answers]
    return {
        "seconds": round(seconds, 4),
        "requests": len(answers),
        "prompt_tokens_min": min(prompt_lengths),
        "prompt_tokens_max": max(prompt_lengths),
        "output_tokens": sum(answer.output_tokens for answer in answers),
        "output_tokens_per_s": round(sum(answer.output_tokens for answer in answers) / seconds, 2),
        "ttft_ms_median": round(1000 * statistics.median(ttfts), 2),
        "ttft_ms_p90": round(1000 * percentile(ttfts, 0.9), 2),
        "itl_ms_median": round(1000 * statistics.median(itls), 3),
        "itl_ms_p90": round(1000 * percentile(itls, 0.9), 3),
    }


def medians(runs: Sequence[Figures]) -> Figures:
    """The median of every figure over several runs."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}
