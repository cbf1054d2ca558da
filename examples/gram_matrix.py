"""A^T A for half the work of a product: covariances of the columns of a table.

python examples/gram_matrix.py
"""

import numpy as np

import pymm

rng = np.random.default_rng(0)
samples = rng.standard_normal((5000, 120)) @ rng.standard_normal((120, 120))
samples -= samples.mean(axis=0)

covariance = pymm.syrk(samples, trans=True, alpha=1 / (len(samples) - 1))
print(f"symmetric to the bit: {np.array_equal(covariance, covariance.T)}")
print(f"as numpy.cov: {np.allclose(covariance, np.cov(samples, rowvar=False))}")

# Only one triangle: the other half of `lower` stays as it is.
lower = np.zeros((120, 120))
pymm.syrk(samples, out=lower, trans=True, alpha=1 / (len(samples) - 1), fill="lower")
print(f"lower triangle alone: {np.array_equal(lower, np.tril(covariance))}")
