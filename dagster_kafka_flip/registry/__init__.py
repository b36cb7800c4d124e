"""Schemas of a schema registry that speaks Confluent's API."""
