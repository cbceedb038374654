"""The self-check: does partial training compute the right numbers for this model?"""
