"""Choosing tokens from logits.

A token is chosen by inverting the cumulative distribution at one uniform number per token, over the tokens in the
order of falling probability (ties: lowest id first). That makes the choice a function of the logits, the parameters
and the number alone, and lets most rows be decided from their best few tokens without a look at the rest:
`draw` bounds what it has not seen and says whether the choice could be another one; where it could, the next larger
`view` of the row is ranked. A greedy row is the case of the number 0.
"""
