"""Models to train on the platform. They know nothing of ranks; `distributed.parallelize` puts them on a mesh."""
