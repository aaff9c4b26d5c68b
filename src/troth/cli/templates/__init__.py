"""Files to begin a plug-in with; `troth example` prints them."""
