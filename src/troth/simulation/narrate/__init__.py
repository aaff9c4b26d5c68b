"""What happened in a simulated world, told step by step."""
