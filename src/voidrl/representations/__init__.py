"""Representations: ways to learn an encoder, one file each."""
