"""PromQL on vLLM's counters: acceptance, latency, load. Pure text; knows no alert and no panel."""

from __future__ import annotations

from dataclasses import dataclass

ENGINE = "job, instance, model_name, engine"
"""Labels of one engine. Each is judged alone: in the mean of eight, a dead one does not show."""
SERVER = "job, instance, model_name"


@dataclass(frozen=True, slots=True)
class Of:
    """Over which series, how much time, and by which labels."""

    range: str
    by: str = ENGINE
    selector: str = ""
    """More label matchers, such as `model_name="llama"`."""

    def rate(self, metric: str, *, per: str = "") -> str:
        """Gain per second of a counter; `per`: one more label to keep."""
        return f"sum by ({self.by}{per}) (rate({self.series(metric)}[{self.range}]))"

    def increase(self, metric: str) -> str:
        """Gain of a counter."""
        return f"sum by ({self.by}) (increase({self.series(metric)}[{self.range}]))"

    def series(self, metric: str) -> str:
        """The series of a metric of vLLM's."""
        return f"vllm:{metric}{{{self.selector}}}" if self.selector else f"vllm:{metric}"


DRAFTS = "spec_decode_num_drafts_total"
DRAFTED = "spec_decode_num_draft_tokens_total"
ACCEPTED = "spec_decode_num_accepted_tokens_total"
PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
GENERATED = "generation_tokens_total"
FIRST_TOKENS = "time_to_first_token_seconds_count"
TTFT, TPOT, E2E = (
    "time_to_first_token_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
)


def mean_acceptance_length(of: Of) -> str:
    """Tokens per step with drafts, 1 to K + 1; nothing where nothing is drafted."""
    return f"1 + {of.rate(ACCEPTED)} / ({of.rate(DRAFTS)} > 0)"


def acceptance_ratio(of: Of) -> str:
    """Accepted over drafted tokens."""
    return f"{of.rate(ACCEPTED)} / ({of.rate(DRAFTED)} > 0)"


def position_ratio(of: Of) -> str:
    """Share of the steps that accepted each draft position. Where K varies, later positions read low."""
    return f"{of.rate(PER_POSITION, per=', position')} / on ({of.by}) group_left () ({of.rate(DRAFTS)} > 0)"


def undrafted_ratio(of: Of) -> str:
    """Share of the output tokens, after each request's first, that came without a draft; an estimate from below."""
    later = f"({of.rate(GENERATED)} - {of.rate(FIRST_TOKENS)})"
    return f"clamp_min(1 - ({of.rate(DRAFTS)} + {of.rate(ACCEPTED)}) / ({later} > 0), 0)"


def quantile(share: float, metric: str, of: Of) -> str:
    """A quantile of one of vLLM's histograms, in seconds."""
    return f"histogram_quantile({share:g}, {of.rate(f'{metric}_bucket', per=', le')})"
