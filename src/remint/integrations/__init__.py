"""Budgets for the trainers of others, and their figures for loggers. Each file needs the package it is named after."""
