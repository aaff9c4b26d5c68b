"""A member's services to peers that are in no step: absent ones that come back, strangers, and candidates."""
