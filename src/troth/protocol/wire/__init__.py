"""Bytes and their strict parsing: messages, frames, and the primitives that check them."""
