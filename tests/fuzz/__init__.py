"""Every decoder that sees peers' bytes, fed with bytes that no honest peer sends: quick tests here, a million by `make fuzz`."""
