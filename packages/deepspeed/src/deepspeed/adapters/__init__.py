"""Old names whose behaviour differs from the part of ours that serves them."""
