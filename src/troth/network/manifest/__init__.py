"""The manifest: what everyone who takes part has agreed on before the run."""
