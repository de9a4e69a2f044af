"""Speech on disk to batches in memory: manifests, corpora, preparation, the sampler and the feed of a run."""
