"""The self-check: is partial training correct for this model?"""
