# SPDX-License-Identifier: Apache-2.0
"""transformers' generation ends where all sequences have ended, which the device says, and nobody computed. Here it ends
at its greatest length, where it takes the most memory; without one, where the device says."""
import os


def change(module):
    mixin, criteria = module.GenerationMixin, module.StoppingCriteriaList
    if os.environ.get("SIMCUDA_DRY") != "1" or not hasattr(mixin, "_has_unfinished_sequences"):
        return
    ask, compare = mixin._has_unfinished_sequences, criteria.__call__
    is_long = None  # are the sequences of the loop that compared last as long as they may be? None: nobody can say

    def __call__(self, input_ids, *arguments, **named):
        nonlocal is_long
        is_long = input_ids.shape[1] >= self.max_length if input_ids.is_cuda and self.max_length is not None else None
        return compare(self, input_ids, *arguments, **named)

    def _has_unfinished_sequences(self, *arguments, **named):
        """The flag goes with who asked: the next loop, or that of an assistant, begins anew."""
        nonlocal is_long
        goes_on, is_long, was_long = ask(self, *arguments, **named), None, is_long
        return goes_on if was_long is None else not was_long

    criteria.__call__, mixin._has_unfinished_sequences = __call__, _has_unfinished_sequences
