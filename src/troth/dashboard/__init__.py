"""The web page. Empty until then."""
