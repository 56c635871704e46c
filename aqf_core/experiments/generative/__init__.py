"""Generative modelling and density estimation: the paper's methods as compositions of one flow."""
