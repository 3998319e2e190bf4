"""The records that flow between the parts, from a request to a packed row.

    TurnRequest  --server-->  Turn  --samples-->  Sample  --planner-->  Row  --forward-->  loss

All are frozen. Arrays are numpy and never written to after construction.

Shape suffixes: P = prompt tokens, O = tokens the sampler returned, n = tokens of a sample,
N = forwarded tokens of a row, S = segments, T = loss terms, M = samples of a row, K = top
sampler tokens, c = candidates of all tokens, one after another.

Under truncated sampling (top_k, top_p, min_p) a token is drawn from its candidate set, and the
sampler's logprobs are normalised over it. The sets are ragged, so they travel flat:

    candidate_ids  5 9 | 5 7 9 |        token i's set is the next counts[i] ids,
    counts         2     3       0      each id once; 0 = the full vocabulary
"""

from enum import StrEnum

import msgspec
import numpy as np
from jaxtyping import Float32, Int32, UInt8

NO_PARENT = -1  # the parent of a row's root segments
NO_TOKEN = -1  # fills top_ids where the sampler reported fewer than K tokens


class SamplingParams(msgspec.Struct, frozen=True):
    """The sampler's parameters, the same for every turn of a run."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 = all tokens
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    num_logprobs: int = 0  # K; 0 = the sampled token's only


class TurnRequest(msgspec.Struct, frozen=True):
    """One request to the sampler."""

    policy: str  # the served name: a versioned adapter, or the model itself
    prompt_ids: Int32[np.ndarray, "P"]
    max_tokens: int
    seed: int  # unique per (run seed, epoch, position, rollout, turn)
    sampling: SamplingParams


class VersionSpan(msgspec.Struct, frozen=True):
    """Output tokens [start, end) were sampled under `version` of the policy."""

    version: int
    start: int
    end: int


class FinishReason(StrEnum):
    """The reason the sampler stopped."""

    STOP = "stop"  # eos or a stop string
    LENGTH = "length"
    ABORT = "abort"


class Turn(msgspec.Struct, frozen=True):
    """The sampler's answer as token ids; text is never tokenized again."""

    output_ids: Int32[np.ndarray, "O"]
    logprobs: Float32[np.ndarray, "O"]  # of the sampled tokens
    finish_reason: FinishReason
    top_ids: Int32[np.ndarray, "O K"] | None = None  # most likely first; NO_TOKEN = absent
    top_logprobs: Float32[np.ndarray, "O K"] | None = None  # -inf where absent
    version_spans: tuple[VersionSpan, ...] = ()  # empty where the server does not say
    # The set each token was drawn from, itself included; both None: the full vocabulary.
    candidate_ids: Int32[np.ndarray, "c"] | None = None
    candidate_counts: Int32[np.ndarray, "O"] | None = None


class SampleKey(msgspec.Struct, frozen=True, order=True):
    """The identity of a sample, in every process and after every resume."""

    epoch: int
    position: int  # of the epoch's permutation
    index: int  # among all samples of the group


class Sample(msgspec.Struct, frozen=True):
    """The part of a rollout that the loss sees.

    The worker drafts it with its tokens. When its group is scored it gets its key, advantage,
    policy version, rollout and times: a field per token is filled in the draft alone.
    """

    key: SampleKey
    input_ids: Int32[np.ndarray, "n"]
    trained: UInt8[np.ndarray, "n"]  # 1 = token i is predicted and in the loss; never at i = 0
    sampler_logprobs: Float32[np.ndarray, "n"]  # 0 where not trained
    advantage: float
    policy_version: int  # the oldest that generated a token of it
    top_ids: Int32[np.ndarray, "n K"] | None = None  # NO_TOKEN where not trained or absent
    top_logprobs: Float32[np.ndarray, "n K"] | None = None  # -inf where not trained or absent
    version_spans: tuple[VersionSpan, ...] = ()  # over input_ids
    rollout: int = 0  # index of its rollout in the group
    generated_at: float = 0.0  # time.time() at the end of its rollout
    queued_at: float = 0.0  # time.time() when it was offered to the trainer
    reward: float | None = None  # of its rollout, all sources together; None = not scored
    candidate_ids: Int32[np.ndarray, "c"] | None = None  # both None: the full vocabulary
    candidate_counts: Int32[np.ndarray, "n"] | None = None  # 0 where not trained

    @property
    def num_tokens(self) -> int:
        """Tokens of the sample, the prompt's included, before any sharing."""
        return int(self.input_ids.size)

    @property
    def num_trained(self) -> int:
        """Tokens of the sample that are in the loss."""
        return int(np.count_nonzero(self.trained))


class Row(msgspec.Struct, frozen=True):
    """Samples packed as a prefix trie, depth first: what one rank forwards in a micro-batch.

    Segment s holds row positions [segment_start_S[s], segment_start_S[s] + segment_length_S[s]);
    its keys are those of its path from the root, itself included. The loss is a list of terms,
    not a mask: one position can predict for several samples.
    """

    input_ids_N: Int32[np.ndarray, "N"]
    position_ids_N: Int32[np.ndarray, "N"]  # depth in the trie
    segment_start_S: Int32[np.ndarray, "S"]
    segment_length_S: Int32[np.ndarray, "S"]
    segment_parent_S: Int32[np.ndarray, "S"]  # NO_PARENT for a root; parents come first
    term_position_T: Int32[np.ndarray, "T"]  # row position that predicts
    term_target_T: Int32[np.ndarray, "T"]
    term_sampler_logprob_T: Float32[np.ndarray, "T"]
    term_advantage_T: Float32[np.ndarray, "T"]
    term_sample_T: Int32[np.ndarray, "T"]  # index into the M samples
    top_ids_TK: Int32[np.ndarray, "T K"]  # K = 0 where the sampler gave no top logprobs
    top_logprobs_TK: Float32[np.ndarray, "T K"]
    candidate_ids: Int32[np.ndarray, "c"]
    candidate_counts_T: Int32[np.ndarray, "T"]
    sample_keys: tuple[SampleKey, ...]  # M
    sample_policy_version_M: Int32[np.ndarray, "M"]
    raw_tokens: int  # tokens of its samples before sharing
