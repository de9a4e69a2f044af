"""From recordings to batches: corpora, manifests, preparation, sampler and loader."""
